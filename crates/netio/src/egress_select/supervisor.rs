//! The thread that opens AF_XDP devices, closes those that have failed and opens them again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::exchange::{DeviceSide, NewDevice};
use super::paths::XdpDevice;
use super::plan::EgressPlan;
use crate::limits::{DEVICE_LOOK_EVERY, FIRST_WAIT_LOOKS, LONGEST_WAIT_LOOKS, MAX_DEVICES};

/// Opens the device for a loop and a slot, and returns when to use it. `Err`: why it cannot be
/// opened now.
pub trait Opener<D>: Send {
    /// May wait.
    fn open(&mut self, place: DeviceIndex) -> Result<(EgressPlan, D), String>;
    /// Something happened; to be logged.
    fn tell(&mut self, place: DeviceIndex, news: DeviceEvent<'_>);
}

/// Identifies a device: its loop, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIndex {
    /// Number of the loop.
    pub engine: usize,
    /// Number of the device in that loop, below [`MAX_DEVICES`].
    pub slot: usize,
}

/// A change in the state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent<'a> {
    /// It is open.
    Opened,
    /// It failed.
    Lost(&'a str),
    /// It cannot be opened; reported once for each reason in a row.
    NotNow(&'a str),
}

/// One place.
struct Tended {
    place: DeviceIndex,
    is_open: bool,
    /// Looks until it is tried again.
    wait: u32,
    /// Looks to wait after the next failure.
    next_wait: u32,
    /// The last reason reported.
    told: String,
}

struct SupervisorState<D, O> {
    sides: Vec<DeviceSide<D>>,
    places: Vec<Tended>,
    opener: O,
}

/// The thread, while this value lives.
#[derive(Debug)]
pub struct DeviceSupervisor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceSupervisor {
    /// For each of the loops behind `sides`, opens those of its devices `0..devices` that can be
    /// opened now; the thread tries the others again.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start<D, O>(sides: Vec<DeviceSide<D>>, devices: usize, opener: O) -> std::io::Result<Self>
    where
        D: XdpDevice + Send + 'static,
        O: Opener<D> + 'static,
    {
        let tended = |place| Tended {
            place,
            is_open: false,
            wait: 0,
            next_wait: FIRST_WAIT_LOOKS,
            told: String::new(),
        };
        let places = (0..sides.len())
            .flat_map(|engine| (0..devices.min(MAX_DEVICES)).map(move |slot| DeviceIndex { engine, slot }))
            .map(tended)
            .collect();
        let mut state = SupervisorState { sides, places, opener };
        state.look();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("xdp-supervisor".into()).spawn(move || {
            while !flag.load(Ordering::Acquire) {
                std::thread::park_timeout(DEVICE_LOOK_EVERY);
                state.look();
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for DeviceSupervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was already printed; there is no caller left to report it to.
            let _ = thread.join();
        }
    }
}

impl<D: XdpDevice, O: Opener<D>> SupervisorState<D, O> {
    fn look(&mut self) {
        for (engine, side) in self.sides.iter_mut().enumerate() {
            while let Some((slot, device)) = side.departed() {
                let place = DeviceIndex { engine, slot };
                let why = device.failure().unwrap_or_else(|| "it failed".to_owned());
                self.opener.tell(place, DeviceEvent::Lost(&why));
                // Closed here: that waits for the kernel.
                drop(device);
                if let Some(tended) = self.places.iter_mut().find(|tended| tended.place == place) {
                    (tended.is_open, tended.wait) = (false, FIRST_WAIT_LOOKS);
                    tended.told = why;
                }
            }
        }
        for tended in self.places.iter_mut().filter(|tended| !tended.is_open) {
            tended.wait = tended.wait.saturating_sub(1);
            if tended.wait == 0 {
                tended.try_to_open(&mut self.sides[tended.place.engine], &mut self.opener);
            }
        }
    }
}

impl Tended {
    fn try_to_open<D, O: Opener<D>>(&mut self, side: &mut DeviceSide<D>, opener: &mut O) {
        if side.is_abandoned() {
            return;
        }
        let opened = opener.open(self.place).and_then(|(plan, device)| {
            side.hand_over(NewDevice { slot: self.place.slot, plan, device })
                .map_err(|_| "the loop has not yet taken the one before".to_owned())
        });
        match opened {
            Ok(()) => {
                (self.is_open, self.next_wait) = (true, FIRST_WAIT_LOOKS);
                self.told.clear();
                opener.tell(self.place, DeviceEvent::Opened);
            }
            Err(why) => {
                self.wait = self.next_wait;
                self.next_wait = (self.next_wait * 2).min(LONGEST_WAIT_LOOKS);
                if self.told != why {
                    opener.tell(self.place, DeviceEvent::NotNow(&why));
                    self.told = why;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
