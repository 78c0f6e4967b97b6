use std::net::Ipv4Addr;

use super::*;

const MBIT: u64 = 1_000_000;

fn player(number: u8, agent: &str) -> Player {
    Player::new(Ipv4Addr::new(192, 0, 2, number).into(), Some(agent))
}

fn anna() -> Quota {
    Quota { user: "anna".into(), limits: millrace_rights::Limits::default() }
}

fn counted<'a>(
    title: &'a str,
    quota: Option<&'a Quota>,
    mbit: u64,
    player: Option<Player>,
) -> CountedViewer<'a> {
    CountedViewer { title, quota, rate: mbit * MBIT, player }
}

#[test]
fn viewers_of_a_player_count_once_with_the_highest_of_their_rates() {
    let (mut watched, anna) = (Watched::default(), anna());
    let whose = Whose::User("anna".into());
    let used = |watched: &Watched, without| {
        let (streams, rate) = watched.used(&whose, without, |_| 1);
        (streams, rate / MBIT)
    };
    let (tv, phone) = (player(1, "tv"), player(1, "phone"));
    let of_tv = counted("film", Some(&anna), 4, Some(tv));
    // It goes over to another title, and to another bit rate.
    let later = counted("other", Some(&anna), 2, Some(tv));
    watched.begin(of_tv);
    watched.begin(later);
    assert_eq!((used(&watched, None), used(&watched, Some(tv))), ((1, 4), (0, 0)));
    watched.begin(counted("film", Some(&anna), 3, Some(phone)));
    watched.begin(counted("film", Some(&anna), 5, None));
    assert_eq!((used(&watched, None), used(&watched, Some(tv))), ((3, 12), (2, 8)));
    watched.end(of_tv);
    assert_eq!(used(&watched, None), (3, 10));
    watched.end(later);
    assert_eq!(used(&watched, None), (2, 8));
    assert_ne!(player(1, "tv"), player(2, "tv"));
}

#[test]
fn used_by_a_player_at_more_places_than_one_has_counts_as_several() {
    let (mut watched, anna) = (Watched::default(), anna());
    let whose = Whose::User("anna".into());
    let one = counted("film", Some(&anna), 4, Some(player(1, "tv")));
    for number in 1..=20_usize {
        watched.begin(one);
        let expected = number.div_ceil(VIEWERS_OF_PLAYER);
        assert_eq!(watched.used(&whose, None, |_| 0), (expected, expected as u64 * 4 * MBIT), "{number}");
    }
    // The player is at one place, but is sent many segments at once.
    (1..20).for_each(|_| watched.end(one));
    for (sending, expected) in [(0, 1), (VIEWERS_OF_PLAYER, 1), (VIEWERS_OF_PLAYER + 1, 2)] {
        assert_eq!(watched.used(&whose, None, |_| sending), (expected, expected as u64 * 4 * MBIT));
    }
}

#[test]
fn watched_counts_derived_titles_with_parent_and_drops_ended_viewers() {
    let (mut watched, anna) = (Watched::default(), anna());
    let all = [
        counted("film@540p", None, 1, None),
        counted("film", Some(&anna), 2, Some(player(1, "tv"))),
        counted("film@2x", None, 1, Some(player(2, "tv"))),
    ];
    all.into_iter().for_each(|who| watched.begin(who));
    assert_eq!(watched.used(&Whose::Title("film".into()), None, |_| 0), (3, 4 * MBIT));
    assert_eq!(watched.used(&Whose::Title("other".into()), None, |_| 0), (0, 0));
    all.into_iter().for_each(|who| watched.end(who));
    assert!(watched.0.is_empty(), "{watched:?}");
    // A viewer that ends twice takes nothing from others.
    watched.end(all[1]);
}
