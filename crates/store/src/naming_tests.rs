use super::*;

fn names(path: &str) -> (String, String, Option<String>) {
    let names = names_of_file(Path::new(path), Some(Path::new("/films")));
    (names.name, names.title, names.folder)
}

#[test]
fn file_name_keeps_its_letters_as_display_name() {
    for (path, title) in [
        ("/films/Война и мир.mkv", "Война и мир"),
        ("/films/七人の侍.ts", "七人の侍"),
        ("/films/Ο Θίασος.mp4", "Ο Θίασος"),
        ("/films/تايتانيك.ts", "تايتانيك"),
        ("/films/기생충.ts", "기생충"),
        ("/films/कहानी.ts", "कहानी"),
        ("/films/סרט.ts", "סרט"),
        ("/films/🎬.ts", "🎬"),
        ("/films/Amélie (2001).TS", "Amélie (2001)"),
        ("/films/S.W.A.T", "S.W.A.T"),
        ("/films/a\tb\n c.ts", "a b c"),
        ("/films/evil\u{202e}txt.ts", "eviltxt"),
    ] {
        assert_eq!(names(path).1, title, "{path}");
    }
}

#[test]
fn name_that_only_numbers_a_part_has_its_folder() {
    for (path, name, title) in [
        ("/films/Season 1/01.mkv", "Season 1 01", "Season 1 - 01"),
        ("/films/Season 2/01.mkv", "Season 2 01", "Season 2 - 01"),
        ("/films/Show/Season 2/E01.mkv", "Show Season 2 E01", "Show - Season 2 - E01"),
        ("/films/Сериал/сезон 1/серия 3.mkv", "Сериал сезон 1 серия 3", "Сериал - сезон 1 - серия 3"),
        ("/films/剧/第1季/第2集.mkv", "剧 第1季 第2集", "剧 - 第1季 - 第2集"),
        ("/films/Alien/VIDEO_TS/VTS_01_1.VOB", "Alien VIDEO_TS VTS_01_1", "Alien - VIDEO_TS - VTS_01_1"),
        ("/films/01.mkv", "01", "01"),
        ("/films/War/1917.mkv", "1917", "1917"),
        ("/films/300.mkv", "300", "300"),
        ("/films/a/film.mkv", "film", "film"),
    ] {
        let found = names(path);
        assert_eq!((found.0.as_str(), found.1.as_str()), (name, title), "{path}");
    }
    assert_eq!(names("/films/Show B/Season 1/Pilot.mkv").2.as_deref(), Some("Show B - Season 1"));
    assert_eq!(names("/films/Pilot.mkv").2, None);
}

#[test]
fn display_name_is_one_line_of_bounded_length() {
    let long = title_text(&"é".repeat(5000));
    assert!(long.len() <= MAX_DISPLAY_NAME_BYTES && long.len() > MAX_DISPLAY_NAME_BYTES - 2);
    assert_eq!(title_text("  a \u{0}\r\n b  "), "a b");
}

#[test]
fn title_tag_counts_unless_an_encoder_left_it() {
    for (tag, file) in [
        ("The Matrix", "matrix"),
        ("Seven Samurai", "七人の侍 1954"),
        ("Pilot, episode 1", "show.s01e01"),
        ("Война и мир", "wm-1967"),
    ] {
        assert!(is_good_tag(tag, file), "{tag}");
    }
    for (tag, file) in [
        ("", "film"),
        ("Lavf59.16.100", "film"),
        ("Downloaded from www.example.com", "film"),
        ("VTS_01_1.VOB", "film"),
        ("Untitled", "film"),
        ("Some.Movie.2001.German.DL", "film"),
        ("Friends", "friends.s01e02"),
        ("Friends", "Friends - 07"),
        ("C:\\video\\a", "film"),
    ] {
        assert!(!is_good_tag(tag, file), "{tag}");
    }
}
