//! Names of titles: URL-safe slugs, unique in the store. Letters of other scripts are transliterated.

use millrace_core::limits::MAX_TITLE_NAME_BYTES;

use crate::naming::is_slug;

/// Letters that people write with marks, as German and the Nordic languages spell them without. For all other letters `deunicode`
/// knows a spelling; names of older stores were made with this table, so it comes first.
const PLAIN: [(&str, &str); 23] = [
    ("àáâãåāăą", "a"),
    ("äæ", "ae"),
    ("çćĉċč", "c"),
    ("ďđð", "d"),
    ("èéêëēĕėęě", "e"),
    ("ĝğġģ", "g"),
    ("ĥħ", "h"),
    ("ìíîïĩīĭįı", "i"),
    ("ĵ", "j"),
    ("ķ", "k"),
    ("ĺļľł", "l"),
    ("ñńņň", "n"),
    ("òóôõōŏő", "o"),
    ("öøœ", "oe"),
    ("ŕŗř", "r"),
    ("śŝşšș", "s"),
    ("ß", "ss"),
    ("ţťŧț", "t"),
    ("þ", "th"),
    ("ùúûũūŭůűų", "u"),
    ("ü", "ue"),
    ("ýÿŷ", "y"),
    ("źżž", "z"),
];

/// Begins names that have no usable character, or that could be taken for an id.
const NAMELESS: &str = "film";

/// The properties of an upload that are known before its first byte.
#[derive(Clone, Copy, Debug)]
pub struct UploadNames<'a> {
    /// Name of the title.
    pub name: &'a str,
    /// The file's name at its origin; the display name is derived from it.
    pub file_name: Option<&'a str>,
}

/// The slug of a name as people write it: `Amélie (2001)` becomes `amelie-2001`.
pub fn slug(wish: &str) -> String {
    let slug = usable(wish);
    if is_slug(&slug) {
        return slug;
    }
    // Empty, or 32 hexadecimal digits.
    cut(format!("{NAMELESS}-{slug}").trim_end_matches('-'), MAX_TITLE_NAME_BYTES).to_owned()
}

/// Whether anything of a name can stand in a slug: of an empty one, or one of punctuation only, nothing can.
pub fn is_usable(wish: &str) -> bool {
    !usable(wish).is_empty()
}

/// What of a name can stand in a slug.
fn usable(wish: &str) -> String {
    let mut slug = String::with_capacity(wish.len());
    for c in wish.chars().flat_map(char::to_lowercase) {
        let plain = PLAIN.iter().find(|(marked, _)| marked.contains(c)).map(|(_, plain)| *plain);
        match (plain, c) {
            (Some(plain), _) => slug.push_str(plain),
            (None, 'a'..='z' | '0'..='9' | '.' | '_') => slug.push(c),
            // Quotes inside words and combining accents vanish.
            (None, '\'' | '\u{2019}' | '\u{300}'..='\u{36f}') => {}
            (None, _) => push_transliterated(&mut slug, c),
        }
        if slug.len() >= MAX_TITLE_NAME_BYTES {
            break;
        }
    }
    cut(&slug, MAX_TITLE_NAME_BYTES).trim_matches(['-', '.', '_']).to_owned()
}

/// Adds a character that no slug has: a letter, digit or symbol as `deunicode` spells it, one dash for any run of others.
fn push_transliterated(slug: &mut String, c: char) {
    let is_spelled = !c.is_ascii() && (c.is_alphanumeric() || is_symbol(c));
    let spelling = is_spelled.then(|| deunicode::deunicode_char(c)).flatten().unwrap_or("-");
    if is_symbol(c) && !slug.ends_with('-') {
        slug.push('-');
    }
    for c in spelling.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            'a'..='z' | '0'..='9' => slug.push(c),
            '\'' => {}
            _ if !slug.ends_with('-') => slug.push('-'),
            _ => {}
        }
    }
}

/// Pictures that people put into names; each is a word of its own.
fn is_symbol(c: char) -> bool {
    matches!(c, '\u{2600}'..='\u{27bf}' | '\u{1f300}'..='\u{1faff}')
}

/// A name that is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeName {
    /// The slug.
    pub(crate) name: String,
    /// Which of the wishes it is.
    pub(crate) wish: usize,
    /// The number behind it, if all wishes were taken.
    pub(crate) number: Option<u64>,
}

/// The slug of the first of `wishes` that is not `taken`; if all are, the last one with the first of `-2`, `-3` ... that is free.
pub(crate) fn unique(wishes: &[String], taken: impl Fn(&str) -> bool) -> FreeName {
    let slugs: Vec<String> = wishes.iter().map(|wish| slug(wish)).collect();
    if let Some(wish) = slugs.iter().position(|slug| !taken(slug)) {
        return FreeName { name: slugs[wish].clone(), wish, number: None };
    }
    let (wish, base) = (slugs.len().saturating_sub(1), slugs.last().map_or(NAMELESS, String::as_str));
    let mut number = 1u64;
    loop {
        number += 1;
        let suffix = format!("-{number}");
        let name = format!("{}{suffix}", cut(base, MAX_TITLE_NAME_BYTES - suffix.len()));
        if !taken(&name) {
            return FreeName { name, wish, number: Some(number) };
        }
    }
}

/// At most `len` bytes; a slug has one byte per character.
fn cut(slug: &str, len: usize) -> &str {
    slug.get(..len).unwrap_or(slug)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_as_people_write_them() {
        for (wish, expected) in [
            ("Big Buck Bunny", "big-buck-bunny"),
            ("Amélie (2001)", "amelie-2001"),
            ("Die Brücke – Übergröße", "die-bruecke-uebergroesse"),
            ("../../etc/passwd", "etc-passwd"),
            ("Le Fabuleux Destin d'Amélie Poulain", "le-fabuleux-destin-damelie-poulain"),
            ("S01E02 -- pilot", "s01e02-pilot"),
            ("千と千尋", "qian-toqian-xun"),
            ("七人の侍 1954", "qi-ren-noshi-1954"),
            ("Война и мир", "voina-i-mir"),
            ("Ο Θίασος", "o-thiasos"),
            ("تايتانيك", "tytnyk"),
            ("기생충", "gisaengcung"),
            ("कहानी", "khaanii"),
            ("סרט", "srt"),
            ("🎬 Premiere 🎬", "clapper-premiere-clapper"),
            ("Wait… what — now", "wait-what-now"),
            ("-rf", "rf"),
            ("", "film"),
            ("...", "film"),
            ("a_b.c", "a_b.c"),
            ("0123456789abcdef0123456789ABCDEF", "film-0123456789abcdef0123456789abcdef"),
        ] {
            assert_eq!(slug(wish), expected, "{wish}");
            assert_eq!(is_usable(wish), expected != "film", "{wish}");
        }
    }

    #[test]
    fn unique_with_taken_name_appends_next_number() {
        let taken = ["film", "film-2", "film-4"];
        let unique = |wish: &str, taken: &dyn Fn(&str) -> bool| super::unique(&[wish.to_owned()], taken).name;
        assert_eq!(unique("Film", &|n| taken.contains(&n)), "film-3");
        let long = "x".repeat(500);
        let first = unique(&long, &|_| false);
        let second = unique(&long, &|n| n == first);
        assert_eq!((first.len(), second.len()), (MAX_TITLE_NAME_BYTES, MAX_TITLE_NAME_BYTES));
        assert!(second.ends_with("x-2"));
    }

    #[test]
    fn unique_with_a_second_wish_takes_it_before_a_number() {
        let wishes = ["Pilot", "Show B Pilot"].map(str::to_owned);
        let free = |taken: &[&str]| {
            let free = unique(&wishes, |name| taken.contains(&name));
            (free.name, free.wish, free.number)
        };
        assert_eq!(free(&[]), ("pilot".to_owned(), 0, None));
        assert_eq!(free(&["pilot"]), ("show-b-pilot".to_owned(), 1, None));
        assert_eq!(free(&["pilot", "show-b-pilot"]), ("show-b-pilot-2".to_owned(), 1, Some(2)));
    }

    proptest! {
        #[test]
        fn slug_of_any_wish_is_valid_and_idempotent(wish in ".{0,200}") {
            let name = slug(&wish);
            prop_assert!(is_slug(&name), "{name:?}");
            prop_assert_eq!(slug(&name), name);
        }
    }
}
