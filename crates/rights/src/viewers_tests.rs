use super::*;

const MBIT: u64 = 1_000_000;

fn anna() -> Whose {
    Whose::User("anna".into())
}

fn player(number: u8, agent: &str) -> Player {
    Player::new(IpAddr::from([192, 0, 2, number]), Some(agent))
}

fn limits(streams: Option<u32>, mbit_per_s: Option<u64>) -> Limits {
    Limits { streams, bits_per_s: mbit_per_s.map(|rate| rate * MBIT) }
}

const START: Instant = Instant(1_000_000_000_000);

#[test]
fn a_player_counts_once_and_until_a_while_after_its_last_segment() {
    let (viewers, one) = (Viewers::default(), limits(Some(1), None));
    let (tv, phone) = (player(1, "tv"), player(1, "phone"));
    let fetch = |at: u64, player| viewers.fetch(START.plus_ns(at), &anna(), one, player, MBIT);
    let full = Err(OverLimit::Streams { of: "user", max: 1 });
    // Pictures and sound at once, and another title: it is the same player.
    (0..3).for_each(|_| fetch(0, tv).unwrap());
    assert_eq!(fetch(0, phone), full);
    assert_eq!(fetch(0, player(2, "tv")), full);
    fetch(PLAYER_HOLD_NS / 2, tv).unwrap();
    assert_eq!(fetch(PLAYER_HOLD_NS, phone), full);
    let over = PLAYER_HOLD_NS / 2 + PLAYER_HOLD_NS;
    assert_eq!(fetch(over - 1, phone), full);
    fetch(over, phone).unwrap();
    assert_eq!(fetch(over, tv), full);
    // Who was refused does not count, and others are not concerned.
    fetch(over + PLAYER_HOLD_NS, tv).unwrap();
    viewers.fetch(START, &Whose::User("ben".into()), one, phone, MBIT).unwrap();
    assert_eq!(Player::new("::ffff:192.0.2.1".parse().unwrap(), Some("tv")), tv);
}

#[test]
fn streams_and_players_are_counted_together() {
    let viewers = Viewers::default();
    let (two, nine) = (limits(Some(2), None), limits(None, Some(9)));
    viewers.begin(&anna(), 4 * MBIT);
    viewers.fetch(START, &anna(), two, player(1, "tv"), 3 * MBIT).unwrap();
    let full = Err(OverLimit::Streams { of: "user", max: 2 });
    assert_eq!(viewers.room(START, &anna(), two, MBIT, None), full);
    assert_eq!(viewers.fetch(START, &anna(), two, player(2, "tv"), MBIT), full);
    // What plays already is not counted against itself.
    assert_eq!(viewers.room(START, &anna(), two, 4 * MBIT, Some(4 * MBIT)), Ok(()));
    assert_eq!(viewers.rate(&anna()), 7 * MBIT);
    assert_eq!(viewers.room(START, &anna(), nine, 2 * MBIT, None), Ok(()));
    let over = viewers.room(START, &anna(), nine, 3 * MBIT, None).unwrap_err();
    assert_eq!(over.to_string(), "7Mb/s of 9Mb/s that this user may have in use, 3Mb/s more asked");
    // A player that goes over to another rendition has the bit rate of that.
    viewers.fetch(START, &anna(), nine, player(1, "tv"), 5 * MBIT).unwrap();
    assert!(viewers.fetch(START, &anna(), nine, player(1, "tv"), 6 * MBIT).is_err());
    viewers.change(&anna(), 4 * MBIT, 2 * MBIT);
    viewers.fetch(START, &anna(), nine, player(1, "tv"), 6 * MBIT).unwrap();
    viewers.end(&anna(), 2 * MBIT);
    assert_eq!(viewers.rate(&anna()), 6 * MBIT);
    assert_eq!(viewers.room(START.plus_ns(PLAYER_HOLD_NS), &anna(), nine, 9 * MBIT, None), Ok(()));
}

#[test]
fn a_title_is_counted_with_what_was_made_of_it() {
    let (viewers, one) = (Viewers::default(), limits(Some(1), None));
    viewers.begin(&Whose::title("film@540p"), MBIT);
    let over = viewers.fetch(START, &Whose::title("film"), one, player(1, "tv"), MBIT).unwrap_err();
    assert_eq!(over.to_string(), "all 1 streams that this title may have are in use");
    assert_eq!(viewers.fetch(START, &Whose::title("other"), one, player(1, "tv"), MBIT), Ok(()));
}

#[test]
fn nothing_is_kept_of_who_is_gone() {
    let (viewers, one) = (Viewers::default(), limits(Some(1), None));
    for number in 0..100 {
        viewers.fetch(START, &Whose::title(&format!("film{number}")), one, player(1, "tv"), MBIT).unwrap();
    }
    viewers.begin(&anna(), MBIT);
    viewers.fetch(START.plus_ns(PLAYER_HOLD_NS), &Whose::title("other"), one, player(1, "tv"), MBIT).unwrap();
    assert_eq!(viewers.live().taken.len(), 2);
    viewers.end(&anna(), MBIT);
    assert_eq!(viewers.live().taken.len(), 1);
}
