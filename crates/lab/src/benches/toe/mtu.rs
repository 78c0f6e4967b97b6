//! "The same when normalized to the throughput" (section IV), whatever the size of packets: the host's load with an MTU of 1500 and of 3000.

use std::time::Duration;

use super::rig::ToeRig;
use super::tables::{CONTENDERS, ENGINE, LARGE, host_load};
use super::work::{TransferDirection, WALK_BYTES, Walk};
use crate::frame::{Interval, NoiseMeter, Options, Promise, Report, Row, Turns};

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
    let length = Duration::from_millis(options.pick(30, 400, 1000));
    let mut other = ToeRig::lay(LARGER)?;
    let mut walk = Walk::new(options.pick(1 << 20, WALK_BYTES, WALK_BYTES), LARGE);
    let mut worst = Interval::from(0.0);
    for way in TransferDirection::BOTH {
        for of in [ENGINE, CONTENDERS[KERNEL]] {
            let label = format!("{}, 128 KB: {}", way.name(), of.name);
            let names = ["MTU 1500", "MTU 3000"];
            let turn = |at: usize, _| -> anyhow::Result<f64> {
                let rig = if at == 0 { &mut *rig } else { &mut other };
                Ok(host_load(&of, &of.slot(rig, false, (way, LARGE, length), &mut walk, None)?))
            };
            options.say(&label);
            let targets =
                |loads: &Turns<f64>| if of == ENGINE { vec![promise(apart(loads))] } else { Vec::new() };
            let loads = Turns::take(options, noise, &names, turn, targets)?;
            if of == ENGINE {
                worst = worst.max(apart(&loads));
            }
            report.rows.push(
                Row::new(label)
                    .with(names[0], loads.median(0, |load| *load), "% a Gb/s")
                    .with(names[1], loads.median(1, |load| *load), "% a Gb/s")
                    .with("apart", (loads.ratio(1, 0, |load| *load).mid - 1.0) * 100.0, "%"),
            );
        }
    }
    report.promises.push(promise(worst));
    Ok(())
}

/// More and less are both too much.
fn apart(loads: &Turns<f64>) -> Interval {
    let percent = loads.ratio(1, 0, |load| *load).map(|ratio| (ratio - 1.0) * 100.0);
    percent.max(percent.map(|percent| -percent))
}

fn promise(apart: Interval) -> Promise {
    Promise::at_most("toe-mtu", apart, WITHIN_PERCENT, "% apart")
}
