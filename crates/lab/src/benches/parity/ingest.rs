//! Taking in a title with parity and without, on one member and on several, beside a plain copy of the file. Source and members lie in
//! memory, so this is the work of the processor, not of disks.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::Volume;

use crate::benches::ingest::{make_media_file, plain_copy, tempdir, timed};
use crate::frame::{Noise, NoiseMeter, Options, Report, Row, Turns};

/// Members, how many of them may be lost, parities for the network alone.
const VOLUMES: [(usize, usize, usize); 5] = [(1, 0, 0), (1, 0, 2), (3, 1, 0), (5, 1, 0), (6, 2, 0)];
/// The destination without parity: the first behind the plain copy.
const WITHOUT: usize = 1;

/// Where a title is put.
struct Destination {
    label: String,
    /// Bytes written for one byte of media, the small files not counted.
    written: f64,
    /// `None`: a plain copy.
    volume: Option<Volume>,
}

/// All of them in turns; needs what `bench ingest` needs.
pub(super) fn run(options: &Options, report: &mut Report) -> anyhow::Result<Noise> {
    let dir = tempdir(options)?;
    let (secs, loops) = options.pick((2, 0), (20, 3), (20, 7));
    options.say("making a media file");
    let file = make_media_file(&dir.0, 20_000, secs, loops)?;
    let mb = std::fs::metadata(&file)?.len() as f64 / 1e6;
    let mut destinations =
        vec![Destination { label: "plain read + write".into(), written: 1.0, volume: None }];
    for (members, tolerance, network) in VOLUMES {
        destinations.push(on_volume(&dir.0, members, tolerance, network)?);
    }
    let how = IngestOptions { cancel: Arc::clone(&options.cancel), ..IngestOptions::default() };
    let mut meter = NoiseMeter::start();
    let names: Vec<&str> = destinations.iter().map(|destination| destination.label.as_str()).collect();
    let turn = |at: usize, _| {
        timed(|| match &destinations[at].volume {
            None => plain_copy(&file, &dir.0.join("copy")),
            Some(volume) => {
                let title = ingest(volume, &file, &how, &mut |_| ())?;
                Ok(volume.remove(title.id)?)
            }
        })
    };
    let turns = Turns::take(options, &mut meter, &names, turn, |_| Vec::new())?;
    for (at, destination) in destinations.iter().enumerate() {
        meter.repeated(&destination.label, &turns.values(at, |(_, cpu)| *cpu));
        let row = Row::new(format!("taking in {mb:.0} MB: {}", destination.label))
            .with("wall clock", mb / turns.median(at, |(wall, _)| *wall), "MB/s")
            .with("processor time", mb / turns.median(at, |(_, cpu)| *cpu), "MB/s")
            .with("time to without parity", turns.ratio(at, WITHOUT, |(_, cpu)| *cpu).mid, "")
            .with("written", destination.written, "bytes/byte");
        report.rows.push(row);
    }
    Ok(meter.finish())
}

fn on_volume(
    dir: &std::path::Path,
    members: usize,
    tolerance: usize,
    network: usize,
) -> anyhow::Result<Destination> {
    let geometry = Geometry::choose(members, tolerance, network).map_err(|error| anyhow!(error))?;
    let name = format!("{members}-{tolerance}-{network}");
    let dirs: Vec<PathBuf> = (0..members).map(|member| dir.join(format!("volume-{name}-{member}"))).collect();
    let volume = Volume::create(&dirs, geometry).with_context(|| format!("volume {name}"))?;
    let label = match (geometry.m, members) {
        (0, _) => "one member, no parity".to_owned(),
        (_, 1) => format!("one member, {}+{} for the network", geometry.k, geometry.m),
        _ => format!("{members} members, {tolerance} may be lost, {}+{}", geometry.k, geometry.m),
    };
    let written = 1.0 + f64::from(geometry.m) / f64::from(geometry.k);
    Ok(Destination { label, written, volume: Some(volume) })
}
