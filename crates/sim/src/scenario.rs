//! The plan of a simulation, drawn from its seed: the server's settings, the actions of each viewer,
//! and the faults. It is plain data, so that parts can be left out to find those that a failure needs.

use millrace_core::random::SplitMix;
use millrace_store::disk::ReadFault;

use crate::titles::{LONGEST_TITLE, MEAN_RATE, Stores};
use crate::users::MOST_USERS;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// The settings of the server.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// Engines.
    pub engines: usize,
    /// Streams of each.
    pub streams_per_engine: usize,
    /// Streams that play at once.
    pub max_streams: usize,
    /// Share of these streams that one address may have.
    pub address_share_percent: u8,
    /// Media sent ahead in connections.
    pub fast_start_ms: u16,
    /// Extents of the cache.
    pub extents: usize,
    /// Reads at a time.
    pub reads_in_flight: usize,
    /// Media read ahead.
    pub prefetch_ns: u64,
    /// Packets leave one by one.
    pub is_smooth: bool,
    /// Streams share wake-ups.
    pub shares_wakes: bool,
}

/// A user.
#[derive(Clone, Copy, Debug)]
pub struct UserPlan {
    /// Streams at once.
    pub streams: Option<u32>,
    /// Bits a second of these together.
    pub bits_per_s: Option<u64>,
    /// Place of the only title that it may watch; `None`: it may watch all.
    pub only_title: Option<usize>,
}

/// How a viewer signs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignIn {
    /// It does not.
    Not,
    /// With a token that the server does not know.
    Wrong,
    /// With the token of this user.
    As(usize),
}

/// A viewer's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewerAction {
    /// PAUSE.
    Pause,
    /// PLAY without a range.
    Resume,
    /// PLAY from a time of the title.
    Seek {
        /// In milliseconds.
        to_ms: u64,
    },
    /// PLAY from a time at another delivery speed.
    Speed {
        /// In milliseconds.
        to_ms: u64,
        /// In thousandths of real time.
        permille: u16,
    },
    /// TEARDOWN.
    TearDown,
    /// It closes its connection.
    Close,
    /// Its power fails.
    Vanish,
    /// It reads and sends nothing for a while.
    Stall {
        /// How long.
        for_ns: u64,
    },
    /// It sends bytes that are not RTSP.
    Garbage,
    /// It sends a datagram that is not RTCP.
    BadReport,
}

/// One action, and how long after the one before.
#[derive(Clone, Copy, Debug)]
pub struct ViewerStep {
    /// Since the action before, or since media was promised first.
    pub after_ns: u64,
    /// The action.
    pub action: ViewerAction,
}

/// One viewer.
#[derive(Clone, Debug)]
pub struct ViewerPlan {
    /// When it connects.
    pub start_ns: u64,
    /// Place of the title among those of the volume.
    pub title: usize,
    /// Media comes by its connection.
    pub by_tcp: bool,
    /// It asks for FEC.
    pub fec: bool,
    /// Where it begins; `None`: at the beginning, without a range.
    pub from_ms: Option<u64>,
    /// Datagrams of a million that it loses.
    pub loss_ppm: u32,
    /// It connects again after the server was killed.
    pub comes_back: bool,
    /// How it signs in.
    pub sign_in: SignIn,
    /// Its actions while it plays.
    pub steps: Vec<ViewerStep>,
}

/// An action of a viewer by HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAction {
    /// GET of a title as a file.
    File {
        /// Where it begins, in thousandths of the title.
        from_permille: u16,
        /// How many bytes; `None`: to the end.
        bytes: Option<u32>,
    },
    /// GET of its last bytes.
    Suffix {
        /// How many.
        bytes: u32,
    },
    /// GET of bytes behind its end.
    PastEnd,
    /// GET of two ranges at once.
    TwoRanges,
    /// HEAD.
    Head,
    /// GET of a title that does not exist.
    Missing,
    /// GET of segments, one after the other, behind the playlist if it has none.
    Segments {
        /// The first one.
        first: u16,
        /// How many.
        count: u16,
    },
    /// It sends the beginning of a request, and nothing more.
    HalfRequest,
    /// It sends bytes that are not HTTP.
    Garbage,
    /// It reads and sends nothing for a while.
    Stall {
        /// How long.
        for_ns: u64,
    },
    /// Its power fails.
    Vanish,
    /// It closes its connection.
    Close,
}

/// One action, and how long after the one before.
#[derive(Clone, Copy, Debug)]
pub struct HttpStep {
    /// Since the action before, or since it connected.
    pub after_ns: u64,
    /// The action.
    pub action: HttpAction,
}

/// One viewer by HTTP.
#[derive(Clone, Debug)]
pub struct HttpPlan {
    /// When it connects.
    pub start_ns: u64,
    /// Place of the title among those of the volume.
    pub title: usize,
    /// Others are at its address.
    pub shares_address: bool,
    /// Its program has a name of its own.
    pub has_name: bool,
    /// How it signs in.
    pub sign_in: SignIn,
    /// It sends requests without waiting for answers.
    pub pipelines: bool,
    /// Its actions. A request that does not pipeline waits until those before are answered.
    pub steps: Vec<HttpStep>,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// A disk.
    Disk {
        /// Its slot in the volume.
        member: u16,
        /// How.
        fault: ReadFault,
        /// For how long.
        for_ns: u64,
    },
    /// The wall clock is set; the monotonic clock goes on.
    WallClock {
        /// Unix time minus monotonic time from now on.
        offset_ns: u64,
    },
    /// The server is killed and started again.
    Kill,
}

/// One fault.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// When.
    pub at_ns: u64,
    /// The fault.
    pub kind: FaultKind,
}

/// Everything that a simulation does.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed that it was drawn from; delays and losses follow from it too.
    pub seed: u64,
    /// Place of the volume.
    pub volume: usize,
    /// Bytes that a connection takes before it is full.
    pub capacity_bytes: usize,
    /// The server.
    pub server: ServerPlan,
    /// The users; without any, viewers need not sign in.
    pub users: Vec<UserPlan>,
    /// The viewers by RTSP.
    pub viewers: Vec<ViewerPlan>,
    /// The viewers by HTTP.
    pub http: Vec<HttpPlan>,
    /// The faults.
    pub faults: Vec<FaultPlan>,
}

fn pick<T: Copy>(random: &mut SplitMix, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

fn chance(random: &mut SplitMix, percent: u64) -> bool {
    random.below(100) < percent
}

impl Scenario {
    /// Draws everything from a seed.
    pub fn from_seed(stores: &Stores, seed: u64) -> Self {
        let mut random = SplitMix::numbered(seed, 0);
        let volume = random.below(stores.volumes.len() as u64) as usize;
        let server = server_plan(&mut random);
        let viewers = (0..1 + random.below(5)).map(|_| viewer_plan(&mut random)).collect();
        let mut scenario = Self {
            seed,
            volume,
            capacity_bytes: pick(&mut random, &[64, 256, 1024]) << 10,
            server,
            users: Vec::new(),
            viewers,
            http: Vec::new(),
            faults: Vec::new(),
        };
        // Half of the seeds have no fault: there nothing excuses anything.
        if chance(&mut random, 50) {
            let members = stores.volumes[volume].dirs.len() as u64;
            scenario.faults = (0..1 + random.below(4)).map(|_| fault_plan(&mut random, members)).collect();
            scenario.faults.sort_by_key(|fault| fault.at_ns);
        }
        if chance(&mut random, 60) {
            scenario.http = (0..1 + random.below(4)).map(|_| http_plan(&mut random)).collect();
        }
        for viewer in scenario.viewers.iter_mut().filter(|viewer| !viewer.by_tcp) {
            viewer.fec = chance(&mut random, 40);
        }
        scenario.server.address_share_percent = pick(&mut random, &[100, 100, 50, 25, 12]);
        for viewer in &mut scenario.http {
            viewer.shares_address = chance(&mut random, 40);
            viewer.has_name = chance(&mut random, 60);
        }
        if chance(&mut random, 35) {
            scenario.add_users(&mut random);
        }
        if chance(&mut random, 10) {
            scenario.crowd_address();
        }
        scenario
    }

    /// All viewers by HTTP fetch the longest title from one address: most other answers are sent
    /// ahead at once, and never under way together.
    fn crowd_address(&mut self) {
        for viewer in &mut self.http {
            viewer.title = LONGEST_TITLE;
            viewer.shares_address = viewer.sign_in != SignIn::Wrong;
            if let Some(step) = viewer.steps.first_mut() {
                step.action = HttpAction::File { from_permille: 0, bytes: None };
            }
        }
    }

    /// Draws users, and who signs in as which.
    fn add_users(&mut self, random: &mut SplitMix) {
        let users = 2 + random.below(MOST_USERS as u64 - 1) as usize;
        self.users = (0..users).map(|_| user_plan(random)).collect();
        let mut sign_in = || match random.below(100) {
            0..8 => SignIn::Wrong,
            8..14 => SignIn::Not,
            _ => SignIn::As(random.below(users as u64) as usize),
        };
        self.viewers.iter_mut().for_each(|viewer| viewer.sign_in = sign_in());
        for viewer in &mut self.http {
            viewer.sign_in = sign_in();
            // After ten wrong tokens an address has to wait, in time that is not simulated.
            viewer.shares_address &= viewer.sign_in != SignIn::Wrong;
        }
    }
}

fn server_plan(random: &mut SplitMix) -> ServerPlan {
    ServerPlan {
        engines: pick(random, &[1, 1, 2]),
        streams_per_engine: pick(random, &[8, 8, 8, 3]),
        max_streams: pick(random, &[8, 8, 8, 2, 1]),
        address_share_percent: 100,
        fast_start_ms: pick(random, &[0, 0, 500, 2_000]),
        extents: pick(random, &[24, 32, 64]),
        reads_in_flight: pick(random, &[2, 4, 8]),
        prefetch_ns: pick(random, &[0, SECOND, 2 * SECOND]),
        is_smooth: chance(random, 20),
        shares_wakes: chance(random, 30),
    }
}

fn user_plan(random: &mut SplitMix) -> UserPlan {
    let streams = pick(random, &[None, Some(1), Some(1), Some(2), Some(3)]);
    let rates = pick(random, &[0, 0, 0, 1, 2]);
    let bits_per_s = (rates > 0).then(|| rates * MEAN_RATE + random.below(MEAN_RATE));
    let only_title = chance(random, 25).then(|| random.below(4) as usize);
    UserPlan { streams, bits_per_s, only_title }
}

fn viewer_plan(random: &mut SplitMix) -> ViewerPlan {
    let start_ns = random.below(3_000) * MS;
    let title = random.below(4) as usize;
    let by_tcp = chance(random, 45);
    let from_ms = chance(random, 40).then(|| random.below(26_000));
    let loss_ppm = pick(random, &[0, 0, 0, 5_000, 50_000]);
    let comes_back = chance(random, 50);
    let steps = (0..random.below(6)).map(|_| viewer_step(random)).collect();
    let (fec, sign_in) = (false, SignIn::Not);
    ViewerPlan { start_ns, title, by_tcp, fec, from_ms, loss_ppm, comes_back, sign_in, steps }
}

fn viewer_step(random: &mut SplitMix) -> ViewerStep {
    let after_ns = match random.below(4) {
        0 => random.below(20) * MS,
        _ => random.below(4_000) * MS + random.below(MS),
    };
    let to_ms = random.below(26_000);
    let action = match random.below(100) {
        0..20 => ViewerAction::Pause,
        20..42 => ViewerAction::Resume,
        42..64 => ViewerAction::Seek { to_ms },
        64..72 => ViewerAction::Speed { to_ms, permille: pick(random, &[500, 800, 1_250, 2_000]) },
        72..80 => ViewerAction::TearDown,
        80..85 => ViewerAction::Close,
        85..89 => ViewerAction::Vanish,
        89..94 => ViewerAction::Stall { for_ns: random.below(12_000) * MS },
        94..97 => ViewerAction::Garbage,
        _ => ViewerAction::BadReport,
    };
    ViewerStep { after_ns, action }
}

fn http_plan(random: &mut SplitMix) -> HttpPlan {
    let start_ns = random.below(3_000) * MS;
    let title = random.below(4) as usize;
    let pipelines = chance(random, 30);
    let steps = (0..1 + random.below(6)).map(|_| http_step(random)).collect();
    let (shares_address, has_name, sign_in) = (false, false, SignIn::Not);
    HttpPlan { start_ns, title, shares_address, has_name, sign_in, pipelines, steps }
}

fn http_step(random: &mut SplitMix) -> HttpStep {
    let after_ns = match random.below(3) {
        0 => random.below(20) * MS,
        _ => random.below(4_000) * MS + random.below(MS),
    };
    let lengths = [1, 188, 1_316, 40_000, 257_936, 700_001];
    let action = match random.below(100) {
        0..30 => {
            let from_permille = pick(random, &[0, 0, 1, 333, 500, 640, 999]);
            let bytes = chance(random, 70).then(|| pick(random, &lengths) + random.below(3) as u32);
            HttpAction::File { from_permille, bytes }
        }
        30..36 => HttpAction::Suffix { bytes: pick(random, &lengths) },
        36..40 => HttpAction::PastEnd,
        40..42 => HttpAction::TwoRanges,
        42..45 => HttpAction::Head,
        45..48 => HttpAction::Missing,
        48..74 => HttpAction::Segments { first: random.below(4) as u16, count: 1 + random.below(4) as u16 },
        74..78 => HttpAction::HalfRequest,
        78..82 => HttpAction::Garbage,
        82..91 => {
            let most_ms = pick(random, &[500, 12_000, 12_000, 140_000]);
            HttpAction::Stall { for_ns: random.below(most_ms) * MS }
        }
        91..95 => HttpAction::Vanish,
        _ => HttpAction::Close,
    };
    HttpStep { after_ns, action }
}

fn fault_plan(random: &mut SplitMix, members: u64) -> FaultPlan {
    let at_ns = random.below(15_000) * MS;
    let kind = match random.below(10) {
        0 => FaultKind::Kill,
        1 => FaultKind::WallClock { offset_ns: random.below(4_000_000_000) * SECOND },
        _ => {
            let fault = match random.below(7) {
                0 => ReadFault::Eio,
                1 => ReadFault::Hang,
                2 => ReadFault::SlowNs(random.below(1_500) * MS),
                3 => ReadFault::Short,
                4 => ReadFault::EioAt { at: random.below(2_000_000), bytes: 1 + random.below(20_000) },
                5 => ReadFault::HangAt { at: random.below(2_000_000), bytes: 1 + random.below(20_000) },
                _ => ReadFault::Flip { seed: random.next(), one_in: pick(random, &[1, 50, 1_000]) },
            };
            let member = random.below(members) as u16;
            FaultKind::Disk { member, fault, for_ns: random.below(6_000) * MS }
        }
    };
    FaultPlan { at_ns, kind }
}
