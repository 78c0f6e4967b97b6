use bolero::TypeGenerator;

use crate::bound::least_delay_ns;
use crate::limits::{MAX_CHANNELS, MAX_FILM_NS, MIN_SLOT_NS, SKYSCRAPER_WIDTHS};
use crate::plan::{Plan, PlanError, PlanRequest};
use crate::scheme::Scheme;

const TWO_HOURS: u64 = 7_200_000_000_000;

fn plan(scheme: Scheme, channels: u8, film_ns: u64) -> Plan {
    Plan::new(PlanRequest { scheme, channels, film_ns }).unwrap()
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Case {
    scheme: u8,
    channels: u8,
    film: u32,
    arrival: u64,
}

impl Case {
    fn request(self) -> PlanRequest {
        let scheme = match self.scheme % 8 {
            0 => Scheme::Staggered,
            1 => Scheme::Pagoda,
            2 => Scheme::FixedDelay,
            width => Scheme::Skyscraper { width: SKYSCRAPER_WIDTHS[usize::from(width) - 3] },
        };
        let channels = 1 + self.channels % MAX_CHANNELS;
        // From a hundredth of a second to twelve hours, all magnitudes alike.
        let film_ns = (MIN_SLOT_NS << (self.film % 23)) + u64::from(self.film) * 7;
        PlanRequest { scheme, channels, film_ns: film_ns.min(MAX_FILM_NS) }
    }
}

/// Hears the channels of the plan slot by slot, knowing nothing of how schemes are made.
fn watch(plan: &Plan, arrival_ns: u64) {
    let first = plan.slot_from(arrival_ns);
    let playback = plan.playback_slot(first);
    let start_ns = plan.slot_start_ns(playback);
    assert!(start_ns >= arrival_ns && start_ns - arrival_ns <= plan.delay_ns(), "the delay is kept");
    let joins = plan.joins(first);
    assert!(joins.iter().all(|join| join.from_slot >= first), "nothing was heard before the arrival");
    assert!(joins.is_sorted_by_key(|join| join.from_slot));
    let segments = u64::from(plan.segments());
    assert!(segments * plan.slot_ns() >= plan.request().film_ns);
    let mut has = vec![false; segments as usize];
    let mut held: u64 = 0;
    let end = joins.iter().map(|join| join.until_slot).max().unwrap();
    assert!(end <= playback + segments, "no channel is heard behind the end");
    for slot in first..playback + segments {
        let mut heard = 0;
        for join in joins.iter().filter(|join| (join.from_slot..join.until_slot).contains(&slot)) {
            heard += 1;
            let segment = plan.segment_at(join.channel, slot) as usize;
            held += u64::from(!std::mem::replace(&mut has[segment], true));
        }
        assert!(heard <= plan.receive_channels(), "{heard} channels at once in slot {slot}");
        // Shown in this slot, byte by byte as it may be coming in.
        if let Some(shown) = slot.checked_sub(playback) {
            assert!(has[shown as usize], "segment {shown} is late: {:?}", plan.request());
            held -= 1;
        }
        assert!(held <= u64::from(plan.buffer_slots()), "{held} slots held: {:?}", plan.request());
    }
    assert_eq!(held, 0);
}

#[test]
fn any_plan_and_arrival_has_each_segment_in_time_within_its_figures() {
    bolero::check!().with_type::<Case>().with_iterations(400).for_each(|case| {
        match Plan::new(case.request()) {
            Ok(plan) => {
                watch(&plan, case.arrival >> 12);
                let bound = least_delay_ns(plan.request().film_ns, plan.channels());
                assert!(plan.delay_ns() >= bound, "below the bound: {:?}", plan.request());
                assert!(plan.slot_ns() >= MIN_SLOT_NS);
            }
            Err(error) => assert!(matches!(error, PlanError::Segments { .. }), "{error}"),
        }
    });
}

#[test]
fn skyscraper_of_any_width_and_phase_needs_two_channels_and_its_buffer() {
    // The phases repeat after the least common multiple of the series up to the width.
    for (width, phases) in SKYSCRAPER_WIDTHS.into_iter().zip([2, 10, 60, 300, 3900]) {
        for channels in 1..=10 {
            let plan = plan(Scheme::Skyscraper { width }, channels, 60_000_000_000);
            for slot in 0..phases {
                watch(&plan, slot * plan.slot_ns());
            }
        }
    }
}

#[test]
fn delays_of_two_hours_fall_from_scheme_to_scheme() {
    let sky = Scheme::Skyscraper { width: 52 };
    let seconds = |channels| {
        [Scheme::Staggered, sky, Scheme::Pagoda, Scheme::FixedDelay]
            .map(|scheme| plan(scheme, channels, TWO_HOURS).delay_ns() / 1_000_000_000)
    };
    assert_eq!(seconds(4), [1800, 720, 378, 141]);
    assert_eq!(seconds(7)[..3], [1028, 184, 28]);
}

#[test]
fn fixed_delay_of_two_hours_is_near_the_bound() {
    let permille = |channels| {
        let plan = plan(Scheme::FixedDelay, channels, TWO_HOURS);
        plan.delay_ns() * 1000 / least_delay_ns(TWO_HOURS, channels)
    };
    assert_eq!(
        [1, 2, 3, 4, 5, 6, 7, 8, 9].map(permille),
        [1036, 1043, 1048, 1053, 1080, 1132, 1225, 1392, 1668]
    );
}

#[test]
fn requests_beyond_the_limits_are_refused() {
    let new = |scheme, channels, film_ns| Plan::new(PlanRequest { scheme, channels, film_ns }).unwrap_err();
    assert_eq!(new(Scheme::Pagoda, 0, TWO_HOURS), PlanError::Channels(0));
    assert_eq!(new(Scheme::Pagoda, 17, TWO_HOURS), PlanError::Channels(17));
    assert_eq!(new(Scheme::Pagoda, 3, 1), PlanError::Length(1));
    assert_eq!(new(Scheme::Pagoda, 3, u64::MAX), PlanError::Length(u64::MAX));
    assert_eq!(new(Scheme::Skyscraper { width: 3 }, 3, TWO_HOURS), PlanError::Width(3));
    let error = new(Scheme::Pagoda, 16, TWO_HOURS).to_string();
    assert!(error.contains("pagoda with 16 channels: needs"), "{error}");
}
