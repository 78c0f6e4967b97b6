use std::collections::VecDeque;
use std::sync::Mutex;

use millrace_core::seam::{PacketTx, SendOutcome, Transmit, TransmitBatch};

use super::*;
use crate::egress_select::exchange;

/// A device with a name, alive or not.
struct Named(u32, bool);

impl PacketTx for Named {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        outcomes[..batch.len()].fill(SendOutcome::Sent);
    }
}

impl XdpDevice for Named {
    fn can_send(&mut self, _: &Transmit<'_>, _: &millrace_core::shape::DatagramShape<'_>) -> bool {
        true
    }
    fn has_failed(&self) -> bool {
        !self.1
    }
    fn failure(&self) -> Option<String> {
        self.has_failed().then(|| format!("{} is gone", self.0))
    }
    fn tend(&mut self) -> bool {
        false
    }
}

type Said = Arc<Mutex<Vec<String>>>;

/// Opens devices as scripted, and keeps the news.
struct Script(VecDeque<Result<u32, &'static str>>, Said);

impl Opener<Named> for Script {
    fn open(&mut self, _: DeviceIndex) -> Result<(EgressPlan, Named), String> {
        match self.0.pop_front().unwrap_or(Err("nothing left")) {
            Ok(name) => Ok((EgressPlan::default(), Named(name, true))),
            Err(why) => Err(why.to_owned()),
        }
    }
    fn tell(&mut self, place: DeviceIndex, news: DeviceEvent<'_>) {
        let said = match news {
            DeviceEvent::Opened => "opened".to_owned(),
            DeviceEvent::Lost(why) | DeviceEvent::NotNow(why) => why.to_owned(),
        };
        self.1.lock().unwrap().push(format!("{}.{} {said}", place.engine, place.slot));
    }
}

/// A supervisor without its thread.
fn state(
    script: Vec<Result<u32, &'static str>>,
    said: &Said,
    side: DeviceSide<Named>,
) -> SupervisorState<Named, Script> {
    let place = DeviceIndex { engine: 0, slot: 0 };
    let places =
        vec![Tended { place, is_open: false, wait: 0, next_wait: FIRST_WAIT_LOOKS, told: String::new() }];
    SupervisorState { sides: vec![side], places, opener: Script(script.into(), Arc::clone(said)) }
}

#[test]
fn supervisor_reopens_device_after_loss() {
    let said = Said::default();
    let (mut loop_side, side) = exchange();
    let mut state = state(vec![Ok(1), Err("down"), Err("down"), Ok(2)], &said, side);
    state.look();
    let mut first = loop_side.arrival().unwrap().device;
    first.1 = false;
    assert!(loop_side.depart(0, first).is_ok());
    let looks = (1..100)
        .find(|_| {
            state.look();
            loop_side.arrival().is_some_and(|arrival| arrival.device.0 == 2)
        })
        .expect("it is opened again");
    assert!(looks <= 16, "after {looks} looks");
    assert_eq!(*said.lock().unwrap(), ["0.0 opened", "0.0 1 is gone", "0.0 down", "0.0 opened"]);
}

#[test]
fn supervisor_backs_off_after_failed_opens() {
    let said = Said::default();
    let (_loop_side, side) = exchange();
    let mut state = state(vec![Err("no"); 1000], &said, side);
    for _ in 0..1000 {
        state.look();
    }
    let tries = 1000 - state.opener.0.len();
    assert!((30..=40).contains(&tries), "{tries}");
    assert_eq!(said.lock().unwrap().len(), 1, "said once");
}

#[test]
fn supervisor_thread_opens_devices_and_ends_on_drop() {
    let said = Said::default();
    let (mut loop_side, side) = exchange();
    let script = Script(vec![Ok(7), Ok(8)].into(), Arc::clone(&said));
    let supervisor = DeviceSupervisor::start(vec![side], 2, script).unwrap();
    assert_eq!(loop_side.arrival().map(|a| (a.slot, a.device.0)), Some((0, 7)));
    assert_eq!(loop_side.arrival().map(|a| (a.slot, a.device.0)), Some((1, 8)));
    drop(supervisor);
    assert_eq!(Arc::strong_count(&said), 1, "the thread is over");
}
