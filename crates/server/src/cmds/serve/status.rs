//! The state of the server, as the web side reports it to operators.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::dest::Dest;
use millrace_core::time::NS_PER_S;
use millrace_store::cache::{Cache, MemberHealth};
use millrace_store::volume::Volume;
use millrace_web::status::{Refusal, Room, Session, VolumeMember};
use millrace_web::{LiveCast, LivePiece, LiveStatus, LiveWindow, PlayedChannel, SkippedItem, Status};

use super::members::trouble;
use crate::admission::InUse;
use crate::cast::ChannelReport;
use crate::control::{Snapshot, TurnedAway};
use crate::live::channel::SourceReport;
use crate::live::choice::SourceRank;
use crate::live::segments::{HeldSegments, LiveSegment};
use crate::live::{LIVE_PREFIX, LiveChannel};
use crate::service::{CastStatus, Fetcher, TitleEntry};
use crate::session::{SessionInfo, SessionState};

pub(super) fn of(snapshot: Snapshot, members: Vec<VolumeMember>) -> Status {
    let fetcher = |fetcher: Fetcher| {
        let is_live = fetcher.title.starts_with(LIVE_PREFIX);
        let position_s = (!is_live).then(|| fetcher.at.as_secs_f64());
        Session {
            session: fetcher.label,
            title: fetcher.title,
            peer: fetcher.viewer.to_string(),
            transport: "HLS",
            is_playing: true,
            position_s,
            age_s: snapshot.now.ns_since(fetcher.started) / NS_PER_S,
            bits_per_s: fetcher.rate,
            lost: None,
        }
    };
    let fetchers = snapshot.fetchers.into_iter().map(fetcher);
    let mut sessions: Vec<_> = snapshot.sessions.into_iter().map(session).chain(fetchers).collect();
    sessions.sort_by_key(|session| std::cmp::Reverse(session.age_s));
    let refusal = |TurnedAway { at_unix_s, what, more }| Refusal { at_unix_s, what, more };
    Status {
        room: room(snapshot.in_use),
        sessions,
        casts: snapshot.casts.iter().map(cast).collect(),
        refusals: snapshot.turned_away.into_iter().map(refusal).collect(),
        members,
        library: None,
    }
}

pub(super) fn room(in_use: Vec<InUse>) -> Vec<Room> {
    in_use.into_iter().map(|InUse { what, used, of }| Room { what, used, of }).collect()
}

fn session(info: SessionInfo) -> Session {
    Session {
        session: info.session,
        title: info.title,
        peer: info.peer.to_string(),
        transport: match info.path {
            Dest::Udp { .. } => "UDP",
            Dest::Multicast { .. } => "multicast",
            Dest::Interleaved { .. } | Dest::Bytes { .. } => "TCP",
        },
        is_playing: info.state == SessionState::Playing,
        position_s: info.position.map(|position| position.as_secs_f64()),
        age_s: info.age_ns / NS_PER_S,
        bits_per_s: info.rate,
        lost: info.report.map(|report| f64::from(report.fraction_lost) / 256.0),
    }
}

fn cast(CastStatus { title, to, ttl, listeners, is_sending, trouble, .. }: &CastStatus) -> LiveCast {
    LiveCast {
        title: title.clone(),
        to: SocketAddr::new(to.group, to.port).to_string(),
        ttl: *ttl,
        listeners: *listeners as u64,
        is_sending: *is_sending,
        trouble: trouble.clone(),
    }
}

/// A live title, with its number of streams and the casts that there are.
pub(super) fn live(channel: &LiveChannel, streams: usize, casts: &[CastStatus]) -> LiveStatus {
    let SourceReport { state, message, mean_rate, on_air } = channel.report();
    let name = channel.name();
    let played = channel.channel();
    let title = format!("{LIVE_PREFIX}{name}");
    let multicast: Vec<_> = casts.iter().filter(|cast| cast.title == title).map(cast).collect();
    let listeners: u64 = multicast.iter().map(|cast| cast.listeners).sum();
    LiveStatus {
        name: name.to_owned(),
        state: state.name(),
        on_air: on_air.map(SourceRank::name),
        message: played.as_ref().map_or_else(|| message, ChannelReport::message),
        channel: played.map(|report| PlayedChannel {
            item: report.item,
            skipped: report.skipped.into_iter().map(|(item, reason)| SkippedItem { item, reason }).collect(),
            to: report.to,
        }),
        recording: None,
        bits_per_s: mean_rate.0,
        // A cast is a stream without a viewer of its own.
        viewers: (streams.saturating_sub(multicast.len()) as u64) + listeners,
        file: format!("/{LIVE_PREFIX}{name}.ts"),
        hls: format!("/{LIVE_PREFIX}{name}/index.m3u8"),
        low_latency_hls: format!("/{LIVE_PREFIX}{name}/low-latency.m3u8"),
        rtsp: format!("/{LIVE_PREFIX}{name}"),
        multicast,
    }
}

/// The segments of a live title.
pub(super) fn live_window(channel: &Arc<LiveChannel>) -> LiveWindow {
    let (held, listed) = channel.segments();
    let HeldSegments { segments, breaks_before, growing, is_growing_discontinuous, longest } = held;
    let bytes = channel.packet_bytes();
    let piece = |segment: LiveSegment| LivePiece {
        number: segment.number,
        bytes: u64::from(segment.packets.start) * bytes..u64::from(segment.packets.end) * bytes,
        length: segment.length,
        is_discontinuous: segment.is_discontinuous,
        parts: segment.parts,
    };
    let TitleEntry { mean_rate, peak_rate, .. } = channel.entry();
    LiveWindow {
        mean_rate,
        peak_rate,
        version: channel.version(),
        breaks_before,
        listed,
        pieces: segments.into_iter().map(piece).collect(),
        growing,
        is_growing_discontinuous,
        longest,
    }
}

/// The members of a volume of several, with what its files and its reads say of them.
pub(super) fn members(volume: &Volume, cache: &Cache) -> Vec<VolumeMember> {
    let reads = cache.members();
    let slots = volume.members().report();
    if slots.len() < 2 {
        return Vec::new();
    }
    let member = |slot: millrace_store::members::SlotReport| {
        let read = reads.iter().find(|read| usize::from(read.index) == slot.index);
        let answers_badly =
            read.filter(|read| matches!(read.health, MemberHealth::Slow | MemberHealth::Failing));
        VolumeMember {
            member: slot.index,
            place: slot.dir.display().to_string(),
            trouble: trouble(&slot).or_else(|| answers_badly.map(|read| read.summary())),
        }
    };
    slots.into_iter().map(member).collect()
}
