use super::*;

const fn about(seconds: u64) -> Wait {
    Wait { mean: Duration::from_secs(seconds), is_fixed: false }
}

#[test]
fn habits_parse() {
    let text = "watch:70, zap 8s:20,pause 5s fixed for 3s:5,seek 10s:4,leave 15s replaced:1";
    let behaviour: Behaviour = text.parse().unwrap();
    let pause = Habit::Pause { after: Wait { is_fixed: true, ..about(5) }, lasts: about(3) };
    assert_eq!(
        behaviour.habits,
        [
            (Habit::Watch, 70.0),
            (Habit::Zap { after: about(8) }, 20.0),
            (pause, 5.0),
            (Habit::Seek { after: about(10) }, 4.0),
            (Habit::Leave { after: about(15), is_replaced: true }, 1.0),
        ]
    );
    assert_eq!("watch".parse::<Behaviour>().unwrap().habits, [(Habit::Watch, 1.0)]);
    assert_eq!(
        "leave 1m".parse::<Behaviour>().unwrap().habits[0].0,
        Habit::Leave { after: about(60), is_replaced: false }
    );
    let script: Behaviour = "pause@5,play@8,seek@10=30".parse().unwrap();
    assert_eq!((script.habits.len(), script.script.0.len()), (0, 3));
}

#[test]
fn bad_texts_say_which_part_and_why() {
    for (text, part, why) in [
        ("watch:70,dance 5s:3", "dance 5s:3", "verbs"),
        ("", "", "verbs"),
        ("zap", "zap", "a time is missing"),
        ("zap 8", "zap 8", "unit"),
        ("zap 1ms", "zap 1ms", "at least 100ms"),
        ("pause 5s", "pause 5s", "pause 5s for 3s"),
        ("pause 5s for", "pause 5s for", "a time is missing"),
        ("watch:x", "watch:x", "not a number"),
        ("watch:0", "watch:0", "above 0"),
        ("watch:inf", "watch:inf", "above 0"),
        ("trick 5s", "trick 5s", "trick 12s at -4"),
        ("trick 5s at 0", "trick 5s at 0", "trick 12s at -4"),
        ("switch 5s at 480p", "switch 5s at 480p", "between 480p 1080p"),
        ("switch 5s between 480p", "switch 5s between 480p", "between 480p 1080p"),
        ("zap 8s again", "zap 8s again", "a word too many"),
        ("jump@5", "jump@5", "pause, play, seek, scale and rendition"),
    ] {
        let error = text.parse::<Behaviour>().unwrap_err().to_string();
        assert!(error.contains(&format!("\"{part}\"")) && error.contains(why), "{error}");
    }
    assert!(vec!["watch"; 33].join(",").parse::<Behaviour>().is_err());
}

#[test]
fn behaviour_display_parses_back_to_same_value() {
    for text in [
        "watch",
        "zap 8s:2.5,watch:1",
        "pause 1.5s for 100ms fixed",
        "leave 2m replaced,seek 333ms fixed:7",
        "trick 12s at -4:2,trick 1s fixed at 0.5",
        "switch 12s between 480p 1080p:2,switch 1s fixed between a auto",
        "pause@5,play@8.5,seek@10=30,scale@11=-32,rendition@12.5=480p",
    ] {
        let behaviour: Behaviour = text.parse().unwrap();
        assert_eq!(behaviour.to_string().parse::<Behaviour>().unwrap(), behaviour, "{behaviour}");
    }
}

#[test]
fn habits_are_drawn_by_weight_and_times_by_their_kind() {
    let behaviour: Behaviour = "watch:3,zap 8s:1".parse().unwrap();
    let mut rng = Rng::new(1, 1);
    let watchers = (0..40_000).filter(|_| behaviour.draw(&mut rng) == Habit::Watch).count();
    assert!((29_000..31_000).contains(&watchers), "{watchers}");
    assert_eq!(Behaviour::default().draw(&mut rng), Habit::Watch);
    let fixed = Wait { mean: Duration::from_secs(3), is_fixed: true };
    assert_eq!(fixed.draw(&mut rng), fixed.mean);
    assert_ne!(about(3).draw(&mut rng), about(3).draw(&mut rng));
}

#[test]
fn behaviour_parse_of_any_text_never_panics() {
    bolero::check!().with_iterations(3000).for_each(|bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(behaviour) = text.parse::<Behaviour>() {
            assert!(behaviour.to_string().parse::<Behaviour>().is_ok(), "{behaviour}");
        }
    });
}
