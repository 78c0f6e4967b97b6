use super::*;

fn at_s(s: u64) -> Tick {
    Tick(ticks(s * 1_000_000_000))
}

fn chance(s: u64) -> Opportunity {
    Opportunity { available: 1 << 20, room: 1 << 20, cwnd: 1 << 20, is_quiet: true, now: at_s(s) }
}

/// Probes on a path that takes up to `path` bytes until nothing is probed for; the segment's size then, and how many were lost.
fn search(mtu: &mut Mtu, path: u16, from_s: u64) -> (u16, u32) {
    let mut lost = 0;
    for step in 0..200 {
        let now = from_s + 2 * step;
        let Wish::Probe(len) = mtu.wants(&chance(now)) else { continue };
        assert!(len > mtu.mss() && mtu.sent(len));
        if len <= path {
            mtu.arrived(len, at_s(now));
        } else {
            lost += 1;
            mtu.probe_lost(0, at_s(now));
        }
    }
    (mtu.mss(), lost)
}

#[test]
fn mtu_search_finds_path_limit_within_step() {
    for (path, most_lost) in [(8948, 0), (4000, 27), (1448, 27)] {
        let mut mtu = Mtu::new(1448, 8948, at_s(0));
        let (found, lost) = search(&mut mtu, path, 1);
        assert!(found <= path && path - found < MTU_STEP, "{path}: {found}");
        assert!(lost <= most_lost, "{path}: {lost} lost");
    }
}

//= RFC 4821 section 7.3
//= type=test
//# When the timer expires, search_high should be
//# reset to its initial value (described above) so that probing can
//# resume.
#[test]
fn mtu_search_is_repeated_after_ten_minutes() {
    let mut mtu = Mtu::new(1448, 8948, at_s(0));
    assert!(search(&mut mtu, 4000, 1).0 <= 4000);
    assert_eq!(mtu.wants(&chance(550)), Wish::Nothing);
    assert_eq!(search(&mut mtu, 8948, 1100), (8948, 0));
}

//= RFC 4821 section 7.4
//= type=test
//# Before sending a probe, the flow MUST meet at least the following
//# conditions:
#[test]
fn mtu_probe_waits_for_data_window_quiet_and_previous_probe() {
    let mut mtu = Mtu::new(1448, 8948, at_s(0));
    let good = chance(1);
    for bad in [
        Opportunity { available: 9000, ..good },
        Opportunity { cwnd: 9000, ..good },
        Opportunity { is_quiet: false, ..good },
    ] {
        assert_eq!(mtu.wants(&bad), Wish::Nothing, "{bad:?}");
    }
    assert_eq!(mtu.wants(&Opportunity { room: 8000, ..good }), Wish::Room);
    assert_eq!(mtu.wants(&good), Wish::Probe(8948));
    assert!(!mtu.sent(1448) && mtu.sent(8948));
    assert_eq!(mtu.wants(&good), Wish::Nothing, "one at a time");
    mtu.probe_lost(ticks(5_000_000_000), at_s(1));
    assert_eq!(
        mtu.wants(&chance(5)),
        Wish::Nothing,
        "as long as congestion control expects to be without a loss"
    );
    assert_eq!(mtu.wants(&chance(7)), Wish::Probe(8948));
}

//= RFC 8899 section 3
//= type=test
//# A
//# PTB message MUST NOT be used to increase the PLPMTU [RFC8201] but
//# could trigger a probe to test for a larger PLPMTU.
#[test]
fn reports_lower_and_never_raise() {
    let mut mtu = Mtu::new(1448, 1448, at_s(0));
    assert!(!mtu.too_big(9000, at_s(1)) && !mtu.too_big(1448, at_s(1)));
    assert!(mtu.too_big(1300, at_s(1)));
    assert!(!mtu.too_big(1400, at_s(1)));
    assert_eq!(mtu.high, 1300, "nor does it raise what may be probed");
    assert_eq!(mtu.mss(), 1300);
    assert!(mtu.too_big(1, at_s(1)));
    assert_eq!(mtu.mss(), MSS_MIN, "not to be made to send crumbs");
    assert_eq!(mtu.wants(&chance(550)), Wish::Nothing);
    assert_eq!(mtu.wants(&chance(602)), Wish::Probe(1448));
}

#[test]
fn mtu_timed_out_detects_black_hole_and_lowers_mss() {
    let mut mtu = Mtu::new(1448, 1448, at_s(0));
    assert!(!mtu.timed_out(1, at_s(10)));
    assert!(mtu.timed_out(2, at_s(12)));
    assert_eq!(mtu.mss(), MSS_BASE);
    assert!(!mtu.timed_out(3, at_s(20)));
    assert!(mtu.timed_out(4, at_s(24)), "IPv4 has links with less than that");
    assert_eq!(mtu.mss(), MSS_MIN);
    assert!(!mtu.timed_out(5, at_s(28)), "there is nothing lower to go");
    assert_eq!(mtu.wants(&chance(30)), Wish::Probe(1448), "an outage is no black hole");
}

#[test]
fn too_big_about_probe_sets_next_probe_size() {
    let mut mtu = Mtu::new(1448, 8948, at_s(0));
    assert_eq!(mtu.wants(&chance(1)), Wish::Probe(8948));
    assert!(mtu.sent(8948) && mtu.too_big(4000, at_s(1)));
    assert_eq!((mtu.mss(), mtu.wants(&chance(3))), (1448, Wish::Probe(4000)));
    assert!(mtu.sent(4000));
    mtu.arrived(4000, at_s(3));
    assert_eq!((mtu.mss(), mtu.wants(&chance(500))), (4000, Wish::Nothing));
    // Where it was a lie the search goes on below.
    let mut mtu = Mtu::new(1448, 8948, at_s(0));
    mtu.too_big(4000, at_s(1));
    let (found, lost) = search(&mut mtu, 2000, 3);
    assert!(found <= 2000 && 2000 - found < MTU_STEP && lost <= 21, "{found}, {lost} lost");
}

#[test]
fn mtu_search_after_black_hole_tries_previous_size_first() {
    let mut mtu = Mtu::new(1448, 8948, at_s(0));
    assert_eq!(search(&mut mtu, 8948, 1), (8948, 0));
    assert!(mtu.timed_out(2, at_s(700)));
    assert_eq!((mtu.mss(), mtu.wants(&chance(702))), (MSS_BASE, Wish::Probe(8948)));
    let (found, _) = search(&mut mtu, 4000, 702);
    assert!(found <= 4000 && 4000 - found < MTU_STEP, "{found}");
}

#[test]
fn too_big_with_exact_probe_size_does_not_end_probe() {
    for (less, found) in [(0, 5198), (1, 1448)] {
        let mut mtu = Mtu::new(1448, 8948, at_s(0));
        let probes = (1..20).map(|step| {
            let Wish::Probe(len) = mtu.wants(&chance(1000 * step)) else { panic!("it is probed for") };
            assert!(mtu.sent(len));
            if len == 8948 {
                mtu.probe_lost(0, at_s(1000 * step));
            }
            (len, step)
        });
        let (len, step) = { probes }.find(|(len, _)| *len < 8948).unwrap();
        assert_eq!(len, 5198);
        // Something else was larger than that.
        assert!(mtu.too_big(len - less, at_s(1000 * step)));
        mtu.arrived(len, at_s(1000 * step));
        assert_eq!(mtu.mss(), found, "{less} less");
    }
}
