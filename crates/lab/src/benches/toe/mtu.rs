//! "The same when normalized to the throughput" (section IV), whatever the size of packets: the host's load with an MTU of 1500 and of 3000.

use std::time::Duration;

use super::rig::ToeRig;
use super::tables::{CONTENDERS, ENGINE, LARGE, host_load};
use super::work::{TransferDirection, WALK_BYTES, Walk};
use crate::frame::stats::{median, median_interval};
use crate::frame::{Interval, NoiseMeter, Options, Promise, Report, Row};

const LARGER: u32 = 3000;
/// The kernel's TCP beside it: with the fewest packets that it makes.
const KERNEL: usize = 2;
const WITHIN_PERCENT: f64 = 10.0;

pub(super) fn run(
    options: &Options,
    rig: &mut ToeRig,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let rounds = options.runs.unwrap_or(options.pick(1, 6, 9));
    let length = Duration::from_millis(options.pick(30, 400, 1000));
    let mut other = ToeRig::lay(LARGER)?;
    let mut walk = Walk::new(options.pick(1 << 20, WALK_BYTES, WALK_BYTES), LARGE);
    let mut worst = Interval::from(0.0);
    for way in TransferDirection::BOTH {
        for of in [ENGINE, CONTENDERS[KERNEL]] {
            let (mut small, mut large, mut apart) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..rounds {
                noise.look();
                options.go_on()?;
                options.say(&format!("MTU, {}, round {}", way.name(), round + 1));
                let case = (way, LARGE, length);
                small.push(host_load(&of, &of.slot(rig, false, case, &mut walk, None)?));
                large.push(host_load(&of, &of.slot(&mut other, false, case, &mut walk, None)?));
                apart.push((large[round] / small[round] - 1.0) * 100.0);
            }
            if of == ENGINE {
                let apart = median_interval(&apart);
                // More and less are both too much.
                worst = worst.max(apart).max(apart.map(|percent| -percent));
            }
            report.rows.push(
                Row::new(format!("{}, 128 KB: {}", way.name(), of.name))
                    .with("MTU 1500", median(&small), "% a Gb/s")
                    .with("MTU 3000", median(&large), "% a Gb/s")
                    .with("apart", median(&apart), "%"),
            );
        }
    }
    report.promises.push(Promise::at_most("toe-mtu", worst, WITHIN_PERCENT, "% apart"));
    Ok(())
}
