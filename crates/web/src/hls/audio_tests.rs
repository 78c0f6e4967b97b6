use super::*;

fn track(pid: u16, tier: AudioTier, language: Option<&str>) -> AudioTrack {
    let (codec, channels) = match tier {
        AudioTier::Aac => ("mp4a.40.2", 2),
        AudioTier::Ac3 => ("ac-3", 6),
        AudioTier::Eac3 => ("ec-3", 6),
    };
    AudioTrack {
        address: pid.to_string(),
        tier,
        codec: codec.to_owned(),
        language: language.map(str::to_owned),
        role: None,
        channels,
    }
}

/// For each group: identifier and codecs; for each member: address, name, whether it is the
/// default, whether players choose it by themselves.
fn lines(tracks: &[AudioTrack]) -> Vec<String> {
    let member = |member: &AudioRendition| {
        let AudioRendition { address, name, is_default, is_chosen_by_itself, .. } = member;
        let default = if *is_default { " default" } else { "" };
        let auto = if *is_chosen_by_itself { "" } else { " not by itself" };
        format!("{address} {name}{default}{auto}")
    };
    let group = |group: &AudioGroup| {
        let members: Vec<_> = group.members.iter().map(member).collect();
        format!("{} {}: {}", group.id, group.codecs.join("+"), members.join(", "))
    };
    groups(tracks).iter().map(group).collect()
}

#[test]
fn groups_of_one_programme_in_two_codecs_are_one_each() {
    use AudioTier::{Aac, Ac3};
    let expected = ["aac mp4a.40.2: 1 English default", "ac-3 ac-3: 2 English default"];
    assert_eq!(lines(&[track(1, Aac, Some("eng")), track(2, Ac3, Some("eng"))]), expected);
    let expected = ["aac mp4a.40.2: 2 English default", "ac-3 ac-3: 1 English default"];
    assert_eq!(lines(&[track(1, Ac3, Some("eng")), track(2, Aac, Some("eng"))]), expected);
    // Languages match in any spelling of their code.
    let expected = ["aac mp4a.40.2: 2 German default", "ac-3 ac-3: 1 German default"];
    assert_eq!(lines(&[track(1, Ac3, Some("ger")), track(2, Aac, Some("deu"))]), expected);
    assert_eq!(
        lines(&[track(1, Ac3, None), track(2, Ac3, Some("und"))]),
        ["ac-3 ac-3: 1 Audio default, 2 Audio 2 not by itself"]
    );
}

#[test]
fn groups_of_further_codecs_have_all_programmes() {
    use AudioTier::{Aac, Ac3, Eac3};
    let tracks = [
        track(1, Aac, Some("eng")),
        track(2, Ac3, Some("eng")),
        track(3, Aac, Some("fre")),
        track(4, Eac3, Some("eng")),
    ];
    let expected = [
        "aac mp4a.40.2: 1 English default, 3 French",
        "ac-3 ac-3+mp4a.40.2: 2 English default, 3 French",
        "ec-3 ec-3+mp4a.40.2: 4 English default, 3 French",
    ];
    assert_eq!(lines(&tracks), expected);
    // The first group has nothing that needs AC-3.
    let tracks = [track(1, Ac3, Some("eng")), track(2, Aac, Some("deu"))];
    let expected = ["aac mp4a.40.2: 2 German default", "ac-3 ac-3+mp4a.40.2: 1 English default, 2 German"];
    assert_eq!(lines(&tracks), expected);
}

#[test]
fn groups_with_roles_have_a_default_for_everybody() {
    use AudioTier::Aac;
    let with = |pid, language, role| AudioTrack { role: Some(role), ..track(pid, Aac, language) };
    let tracks = [
        with(1, Some("eng"), StreamRole::AudioDescription),
        track(2, Aac, Some("eng")),
        with(3, Some("deu"), StreamRole::AudioDescription),
        with(4, Some("eng"), StreamRole::HearingImpaired),
        with(5, Some("eng"), StreamRole::CleanEffects),
        with(6, Some("eng"), StreamRole::Commentary),
    ];
    let expected = "aac mp4a.40.2: 2 English default, 1 English (audio description), \
                    3 German (audio description) not by itself, 4 English (hearing impaired), \
                    5 English (without dialogue) not by itself, 6 English (commentary) not by itself";
    assert_eq!(lines(&tracks), [expected]);
    // It is not the default even if it is the only one.
    let alone = [with(1, Some("eng"), StreamRole::AudioDescription)];
    assert_eq!(lines(&alone), ["aac mp4a.40.2: 1 English (audio description) not by itself"]);
}

#[test]
fn names_of_programmes_in_one_language_differ() {
    use AudioTier::{Aac, Ac3};
    let tracks = [
        track(1, Aac, Some("eng")),
        track(2, Aac, Some("eng")),
        track(3, Ac3, Some("eng")),
        track(4, Aac, Some("xyz")),
        track(5, Aac, Some("qaa")),
    ];
    let expected = [
        "aac mp4a.40.2: 1 English default, 2 English 2 not by itself, 4 xyz, 5 Original language",
        "ac-3 ac-3+mp4a.40.2: 3 English default, 2 English 2 not by itself, 4 xyz, 5 Original language",
    ];
    assert_eq!(lines(&tracks), expected);
}
