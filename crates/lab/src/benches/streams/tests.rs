use super::judge;
use super::*;
use crate::frame::TargetState;

fn cell(transport: Transport, interval_ms: u64) -> Cell {
    Cell { transport, rate: BitRate(500_000), interval_ms }
}

fn standing(cell: Cell, kind: SendMethod, streams: &[f64]) -> Standing {
    Standing {
        cell,
        kind,
        // Six rounds: fewer decide nothing.
        streams: streams.repeat(3),
        confidence: 0.95,
        bound: Bound::Core,
        at: None,
        seen: vec![(10.0, 0.1), (100.0, 0.9)],
    }
}

/// The results that an engine should reach: 4.5 times a process per stream, a little more than the
/// better loop, 2.2 times over TCP.
fn good() -> Vec<Standing> {
    let (udp, long, tcp) = (cell(Transport::Udp, 20), cell(Transport::Udp, 500), cell(Transport::Tcp, 100));
    vec![
        standing(udp, SendMethod::Process, &[1_000.0, 1_200.0]),
        standing(udp, SendMethod::Sendfile, &[1_150.0, 1_380.0]),
        standing(udp, SendMethod::Events, &[3_000.0, 3_600.0]),
        standing(udp, SendMethod::EventsMemory, &[4_000.0, 4_800.0]),
        standing(udp, SendMethod::Engine, &[4_500.0, 5_400.0]),
        standing(long, SendMethod::Process, &[2_000.0, 2_000.0]),
        standing(long, SendMethod::Events, &[4_000.0, 4_000.0]),
        standing(long, SendMethod::Engine, &[4_400.0, 4_400.0]),
        standing(tcp, SendMethod::Process, &[500.0, 500.0]),
        standing(tcp, SendMethod::EventsSendfile, &[5_000.0, 5_000.0]),
        standing(tcp, SendMethod::Engine, &[1_100.0, 1_100.0]),
    ]
}

fn judged(standings: &[Standing]) -> (Report, Vec<(&'static str, TargetState)>) {
    let mut report = Report::new("streams");
    let mut noise = NoiseMeter::start();
    judge::all(standings, &mut report, &mut noise);
    report.declare(BENCH.targets);
    let state = |id: &&'static str| {
        let promise = report.promises.iter().find(|promise| promise.id == **id).unwrap();
        (*id, promise.verdict)
    };
    let states = BENCH.targets.iter().map(state).collect();
    (report, states)
}

fn value(report: &Report, id: &str) -> f64 {
    report.promises.iter().find(|promise| promise.id == id).unwrap().value
}

#[test]
fn streams_target_takes_worst_of_its_own_rows() {
    let (report, states) = judged(&good());
    let met = |id| states.contains(&(id, TargetState::Met));
    assert!(
        met("streams-udp-ratio") && met("streams-event-loop-ratio") && met("streams-tcp-ratio"),
        "{states:?}"
    );
    // The engine's thread was not looked at.
    assert!(states.contains(&("streams-engine-ten", TargetState::NotMeasured)));
    assert_eq!(value(&report, "streams-udp-ratio"), 4.5);
    assert_eq!(value(&report, "streams-event-loop-ratio"), 1.1);
    assert_eq!(value(&report, "streams-tcp-ratio"), 2.2);
    // One interval at which a loop carries more is enough to miss; so is a rate at which a process each does well.
    let mut worse = good();
    worse[7].streams = vec![3_900.0; 6];
    worse.push(Standing { cell: Cell { rate: BitRate(300_000), ..worse[0].cell }, ..worse[0].clone() });
    worse.push(Standing { cell: Cell { rate: BitRate(300_000), ..worse[0].cell }, ..worse[2].clone() });
    worse.push(Standing {
        cell: Cell { rate: BitRate(300_000), ..worse[0].cell },
        kind: SendMethod::Engine,
        ..worse[2].clone()
    });
    let (report, states) = judged(&worse);
    assert!(states.contains(&("streams-event-loop-ratio", TargetState::Missed)), "{states:?}");
    assert_eq!(
        (value(&report, "streams-event-loop-ratio"), value(&report, "streams-udp-ratio")),
        (0.975, 3.0)
    );
}

#[test]
fn step_rows_include_those_of_paper() {
    let (report, _) = judged(&good());
    let steps: Vec<&Row> = report.rows.iter().filter(|row| row.label.starts_with("steps: ")).collect();
    let figures =
        |row: &Row| row.figures.iter().map(|figure| (figure.value * 1000.0).round()).collect::<Vec<_>>();
    assert_eq!(figures(steps[0]), [1150.0, 3000.0, 4500.0], "{report}");
    let paper = steps.last().unwrap();
    assert!(paper.label.contains("the paper") && figures(paper) == [1175.0, 1090.0, 1889.0], "{report}");
    // Streams, switches, and their share of a core, for each transport.
    let titles: Vec<&str> = report.plots.iter().map(|plot| plot.title.as_str()).collect();
    assert_eq!(titles.len(), 6, "{titles:?}");
    assert_eq!(report.plots[0].series.len(), 5, "a colour for each sender by UDP");
}

#[test]
fn rows_of_unreached_stream_count_carry_note() {
    let mut standings = good();
    standings[0].bound = Bound::Extrapolated;
    standings[4].bound = Bound::Delivery;
    let rows: Vec<Row> = standings.iter().flat_map(|s| judge::rows(s, &standings)).collect();
    let notes: Vec<&str> =
        rows.iter().filter(|row| row.figures.is_empty()).map(|row| row.label.as_str()).collect();
    assert_eq!(notes.len(), 2);
    assert!(
        notes[0].contains("process: so many were not tried")
            && notes[1].contains("engine: more are not served")
    );
    let figure = |row: &Row, name: &str| row.figures.iter().find(|figure| figure.name == name).unwrap().value;
    assert_eq!(["streams", "min", "max"].map(|name| figure(&rows[0], name)), [1_100.0, 1_000.0, 1_200.0]);
}

#[test]
fn cumulative_share_counts_kernel_work_only() {
    let routine = |name: &str, samples: u64, is_kernel| Routine {
        name: name.to_owned(),
        samples,
        share: samples as f64 / 1000.0,
        is_kernel,
    };
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut routines = vec![routine("USER", 200, false)];
    routines.extend(names.map(|name| routine(name, 50, true)));
    let rows = top("x", &routines);
    assert_eq!(rows.len(), 10, "as many as the paper has");
    let last = |row: &Row| row.figures[2].value.round();
    assert_eq!([0, 1, 2, 9].map(|n| last(&rows[n])), [0.0, 5.0, 10.0, 45.0]);
    assert_eq!((rows[0].label.as_str(), rows[0].figures[0].value), ("x: USER", 200.0));
}

#[test]
fn words_of_one_family_choose_in_that_family_alone() {
    let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let options = |words: &[&str]| Options { only: of(words), ..Options::new("x") };
    let both = options(&["engine", "rows"]);
    let only = Only::of(&both).unwrap();
    assert!(only.kind(SendMethod::Engine) && !only.kind(SendMethod::Process) && only.interval(20));
    assert!(only.part("rows") && !only.part("files"));
    let none = options(&[]);
    let all = Only::of(&none).unwrap();
    assert!(
        PARTS.iter().all(|part| all.part(part)) && SendMethod::ALL.into_iter().all(|kind| all.kind(kind))
    );
    let error = Only::of(&options(&["50ms"])).err().unwrap().to_string();
    assert!(error.contains("50ms") && error.contains("500ms") && error.contains("events-memory"), "{error}");
}
