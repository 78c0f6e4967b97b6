//! The expected behaviour of a cache, for tests: viewers in lock step, and a simulation of the
//! rules that shares nothing with the code under test. Included by the tests in `tests/` too.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test uses a part of it

use std::collections::HashMap;

/// Viewers who go through one title in lock step, an extent a step, each holding the one he plays.
pub struct Audience {
    /// Next extent of each, and the step in which he begins.
    places: Vec<(u32, u32)>,
    pub extents: u32,
}

impl Audience {
    pub fn new(seed: u64, viewers: u64, extents: u32) -> Self {
        let random = |n: u64| {
            super::sample::noise(seed * 1000 + n, 8).iter().fold(0u64, |a, &b| a * 31 + u64::from(b))
        };
        let place = |n| ((random(2 * n) % u64::from(extents / 2)) as u32, (random(2 * n + 1) % 60) as u32);
        Self { places: (0..viewers).map(place).collect(), extents }
    }

    /// Calls `want(step, viewer, extent)` for everybody's every extent, and `left(viewer)` at the end.
    pub fn run(&self, mut each: impl FnMut(u32, usize, Option<u32>)) {
        for step in 0u32.. {
            let mut going = false;
            for (viewer, &(from, begins)) in self.places.iter().enumerate() {
                let Some(done) = step.checked_sub(begins) else {
                    going = true;
                    continue;
                };
                match from + done {
                    extent if extent < self.extents => {
                        each(step, viewer, Some(extent));
                        going = true;
                    }
                    extent if extent == self.extents => each(step, viewer, None),
                    _ => {}
                }
            }
            if !going {
                return;
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Rule {
    /// The one that will be needed last, judging by the known viewers that have begun.
    NextUse,
    /// The one used longest ago.
    Lru,
}

/// A cache that shares nothing with the code under test: flat maps, whole steps, everything looked at every time.
struct Naive {
    rule: Rule,
    capacity: usize,
    /// Extent and when it was used last.
    resident: HashMap<u32, u64>,
    /// The extent that each viewer holds.
    playing: HashMap<usize, u32>,
    /// Each viewer's next want: its step and its extent.
    known: HashMap<usize, (u32, u32)>,
    clock: u64,
    reads: u64,
}

impl Naive {
    /// The first of this step's need of an extent, over all viewers who have begun.
    fn next_use(&self, extent: u32) -> u32 {
        let reach = self.known.values().filter(|(_, place)| *place <= extent);
        reach.map(|(step, place)| step + (extent - place)).min().unwrap_or(u32::MAX)
    }

    /// Reads an extent unless it is there. One that is only read ahead displaces nothing that is needed as soon, nor,
    /// if it is not `urgent`, anything that is needed at all.
    fn load(&mut self, extent: u32, ahead_of: Option<u32>, urgent: bool) {
        if self.resident.contains_key(&extent) {
            return;
        }
        if self.resident.len() == self.capacity {
            let free = self.resident.iter().filter(|(e, _)| !self.playing.values().any(|held| held == *e));
            let victim = match self.rule {
                Rule::NextUse => free.max_by_key(|(e, used)| (self.next_use(**e), std::cmp::Reverse(**used))),
                Rule::Lru => free.min_by_key(|(_, used)| **used),
            };
            let victim = *victim.expect("more extents than viewers").0;
            let next_use = self.next_use(victim);
            if ahead_of.is_some_and(|need| next_use <= need || !urgent && next_use < u32::MAX) {
                return;
            }
            self.resident.remove(&victim);
        }
        self.reads += 1;
        self.resident.insert(extent, self.clock);
    }
}

/// Reads that a cache of `capacity` extents does by `rule`, each viewer being read `ahead` extents ahead.
pub fn simulate(audience: &Audience, capacity: usize, rule: Rule, ahead: u32) -> u64 {
    let (resident, playing, known) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut naive = Naive { rule, capacity, resident, playing, known, clock: 0, reads: 0 };
    audience.run(|step, viewer, extent| {
        naive.clock += 1;
        naive.playing.remove(&viewer);
        let Some(extent) = extent else {
            naive.known.remove(&viewer);
            return;
        };
        naive.known.insert(viewer, (step, extent));
        naive.load(extent, None, true);
        naive.resident.insert(extent, naive.clock);
        naive.playing.insert(viewer, extent);
        naive.known.insert(viewer, (step + 1, extent + 1));
        for further in (extent + 1..=extent + ahead).take_while(|further| *further < audience.extents) {
            let distance = further - extent;
            naive.load(further, Some(step + distance), 2 * distance <= ahead);
        }
    });
    naive.reads
}
