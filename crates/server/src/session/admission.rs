//! Admission: SETUP checks whether there is room, PLAY reserves it, a long pause gives it back.
//!
//! A session that is not playing holds no part of what the operator allows: it occupies an entry of the session table and streams
//! of an engine's table, which have room for more sessions than may play. When these tables fill up, the sessions that have not
//! played for the longest time end first.

use std::net::IpAddr;

use millrace_core::limits::SESSION_TABLE_HIGH_PERCENT;
use millrace_core::time::Instant;
use millrace_core::units::BitRate;

use super::config::RateBasis;
use super::server::{ConnKey, Server, SessionKey, bucket};
use super::state::{EndReason, Path, Session};
use crate::rtsp::Reply;
use crate::service::{Entry, FecMode};

/// The engine and the bit rate of a session that could be set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) engine: usize,
    pub(super) rate: u64,
}

impl Server {
    /// Which engine takes one more session of this title, if there is room for it to play now.
    pub(super) fn room(
        &mut self,
        now: Instant,
        key: ConnKey,
        session: Option<SessionKey>,
        entry: &Entry,
        path: Path,
    ) -> Result<Room, Reply> {
        if self.shutting_down {
            return Err(Reply::error(503, "the server is shutting down"));
        }
        if session.is_none() {
            self.session_room(now, key, entry)?;
        }
        let Some(conn) = self.conns.get(&key) else { return Err(Reply::status(500)) };
        let (ip, attached) = (conn.peer.ip(), conn.attached);
        let rate = match self.config.rate_basis {
            RateBasis::Mean => entry.mean_rate.0,
            RateBasis::Peak => entry.peak_rate.0,
        };
        if let Some(why) = self.over_limit(ip, rate, session) {
            return Err(self.turned_away(key, entry, 453, why));
        }
        // All RTP of one connection comes from the engine that writes to it.
        let engine = match (path, attached) {
            (Path::Tcp { .. }, Some((engine, _))) => {
                Some(engine).filter(|&engine| self.slots[engine].has_stream_room())
            }
            _ => (0..self.slots.len())
                .filter(|&engine| self.slots[engine].has_stream_room())
                .min_by_key(|&engine| (self.slots[engine].rate, self.slots[engine].streams_taken())),
        };
        match engine {
            Some(engine) => Ok(Room { engine, rate }),
            None => Err(self.turned_away(key, entry, 453, "the engine has no free stream".to_owned())),
        }
    }

    /// Whether the connection and its address may have one more session, and the table has room for it.
    fn session_room(&mut self, now: Instant, key: ConnKey, entry: &Entry) -> Result<(), Reply> {
        let Some(conn) = self.conns.get(&key) else { return Err(Reply::status(500)) };
        if conn.sessions.len() >= self.config.max_sessions_per_connection {
            return Err(Reply::error(503, "too many sessions on this connection; tear one down"));
        }
        let held = self.usage.get(&bucket(conn.peer.ip())).map_or(0, |usage| usage.sessions);
        if held >= self.config.max_sessions_per_address {
            return Err(self.turned_away(key, entry, 503, "too many sessions from this address".to_owned()));
        }
        while self.tables_nearly_full()
            && let Some(&(_, longest_idle)) = self.idle.first()
        {
            self.end_session(now, longest_idle, EndReason::TablesFull);
        }
        if self.sessions.len() >= self.config.max_sessions {
            let why = format!("all {} sessions are in use", self.config.max_sessions);
            return Err(self.turned_away(key, entry, 453, why));
        }
        Ok(())
    }

    fn tables_nearly_full(&self) -> bool {
        let nearly_full = |used: usize, size: usize| used * 100 >= size * SESSION_TABLE_HIGH_PERCENT;
        nearly_full(self.sessions.len(), self.config.max_sessions)
            || nearly_full(self.by_stream.len(), self.slots.len() * self.config.streams_per_engine)
    }

    /// Why a viewer at `ip` may not play `rate` more now; what the session `own` has reserved is not counted against it.
    fn over_limit(&self, ip: IpAddr, rate: u64, own: Option<SessionKey>) -> Option<String> {
        let own = own.and_then(|key| self.sessions.get(&key)).filter(|session| session.is_reserved);
        let (own_streams, own_rate) = own.map_or((0, 0), |session| (1, session.rate));
        if self.reserved_streams() - own_streams >= self.config.max_streams {
            return Some(format!("all {} streams are in use", self.config.max_streams));
        }
        let reserved = self.reserved_rate() - own_rate;
        if let Some(max) = self.config.max_rate
            && reserved.saturating_add(rate) > max.0
        {
            return Some(format!("{} of {max} in use, {} more asked", BitRate(reserved), BitRate(rate)));
        }
        self.over_share(ip, rate, own)
    }

    /// Why a viewer at `ip` may not play `rate` more beside what its address plays already.
    fn over_share(&self, ip: IpAddr, rate: u64, own: Option<&Session>) -> Option<String> {
        let usage = self.usage.get(&bucket(ip)).copied().unwrap_or_default();
        let own = own.filter(|session| bucket(session.peer.ip()) == bucket(ip));
        let streams = usage.streams - own.map_or(0, |_| 1);
        let used_rate = usage.rate - own.map_or(0, |session| session.rate);
        // An address that plays nothing may play one title, however small the share.
        if streams == 0 {
            return None;
        }
        let percent = u64::from(self.config.address_share_percent);
        let max_streams = (self.config.max_streams as u64 * percent / 100).max(1);
        if streams as u64 >= max_streams {
            return Some(format!("all {max_streams} streams that one address may have are in use"));
        }
        let max_rate = BitRate((u128::from(self.config.max_rate?.0) * u128::from(percent) / 100) as u64);
        (used_rate.saturating_add(rate) > max_rate.0).then(|| {
            let (used, more) = (BitRate(used_rate), BitRate(rate));
            format!("{used} of {max_rate} that one address may have in use, {more} more asked")
        })
    }

    /// Reserves a stream and its bit rate for a session that is about to play, unless it has them already.
    ///
    /// # Errors
    /// The reply: 453 with the limit that does not allow it.
    pub(super) fn reserve(&mut self, now: Instant, conn: ConnKey, key: SessionKey) -> Result<(), Reply> {
        let Some(session) = self.sessions.get(&key) else { return Err(Reply::status(454)) };
        if session.is_reserved {
            return Ok(());
        }
        let (ip, rate, fec_rate) = (session.peer.ip(), session.rate, session.fec_rate());
        let entry = session.entry.clone();
        if let Some(why) = self.over_limit(ip, rate, None) {
            // A title is never refused because of its FEC.
            let without_fec = fec_rate > 0
                && self.over_limit(ip, rate - fec_rate, None).is_none()
                && self.switch_fec(now, key, FecMode::Off).is_ok();
            if !without_fec {
                return Err(self.turned_away(conn, &entry, 453, why));
            }
            self.fec_left_out(key, why);
        }
        self.take_reservation(key);
        Ok(())
    }

    /// Counts a session's stream and bit rate.
    pub(super) fn take_reservation(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key).filter(|session| !session.is_reserved) else {
            return;
        };
        session.is_reserved = true;
        self.idle.remove(&(session.idle_since, key));
        let (slots, rate) = (&mut self.slots[session.engine], session.rate);
        (slots.reserved_streams, slots.reserved_rate) =
            (slots.reserved_streams + 1, slots.reserved_rate + rate);
        let usage = self.usage.entry(bucket(session.peer.ip())).or_default();
        (usage.streams, usage.rate) = (usage.streams + 1, usage.rate + rate);
    }

    /// Gives back what a session has reserved; from then on it counts as idle.
    pub(super) fn release_reservation(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key).filter(|session| session.is_reserved) else { return };
        session.is_reserved = false;
        self.idle.insert((session.idle_since, key));
        let (slots, rate) = (&mut self.slots[session.engine], session.rate);
        (slots.reserved_streams, slots.reserved_rate) =
            (slots.reserved_streams - 1, slots.reserved_rate - rate);
        if let Some(usage) = self.usage.get_mut(&bucket(session.peer.ip())) {
            (usage.streams, usage.rate) = (usage.streams - 1, usage.rate - rate);
        }
    }

    /// A session's bit rate is another from now on.
    pub(super) fn change_rate(&mut self, key: SessionKey, rate: u64) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let before = std::mem::replace(&mut session.rate, rate);
        let slots = &mut self.slots[session.engine];
        slots.rate = slots.rate - before + rate;
        if session.is_reserved {
            slots.reserved_rate = slots.reserved_rate - before + rate;
            if let Some(usage) = self.usage.get_mut(&bucket(session.peer.ip())) {
                usage.rate = usage.rate - before + rate;
            }
        }
    }

    /// Takes back what sessions have reserved that have not played for as long as a pause may keep it.
    pub(super) fn release_long_paused(&mut self, now: Instant) {
        let limit = self.config.pause_reservation_ns;
        let is_over = |session: &&Session| {
            session.is_reserved && session.stands_still() && now.ns_since(session.idle_since) >= limit
        };
        let over: Vec<_> = self.sessions.values().filter(is_over).map(|session| session.key).collect();
        for key in over {
            self.release_reservation(key);
        }
    }

    /// Streams of all sessions that play, or have paused only just now.
    pub fn reserved_streams(&self) -> usize {
        self.slots.iter().map(|slots| slots.reserved_streams).sum()
    }

    /// Bits a second of these sessions together, as admission counts them.
    pub fn reserved_rate(&self) -> u64 {
        self.slots.iter().map(|slots| slots.reserved_rate).sum()
    }
}
