//! Limits on simultaneous streams: of all viewers together, of one address and of one user.
//!
//! It is counted twice. The streams that viewers are receiving are never more than the limit. And
//! when one is refused, the service must have reported as many streams that have not ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use millrace_server::service::{Exhausted, Refusal, ServiceEvent};

use crate::scenario::{Scenario, SignIn};
use crate::titles::MEAN_RATE;

/// No stream counts with more than this: twice the speed, and FEC beside it.
const MOST_RATE: u64 = 3 * MEAN_RATE;

/// The count.
#[derive(Default)]
pub struct Shares {
    /// Sessions, orders and viewers of segments that the service has begun and not ended, by kind and
    /// name.
    begun: BTreeMap<(&'static str, String), SocketAddr>,
    users: BTreeMap<SocketAddr, usize>,
    /// Refusals because of the quota of a user.
    pub refused_users: u64,
}

impl Shares {
    /// A viewer connects.
    pub fn arrive(&mut self, peer: SocketAddr, sign_in: SignIn) {
        if let SignIn::As(user) = sign_in {
            self.users.insert(peer, user);
        }
    }

    /// The server has been killed: everything has ended.
    pub fn forget(&mut self) {
        self.begun.clear();
    }

    /// Takes an event of the service.
    ///
    /// # Errors
    /// It has refused a viewer although there was room.
    pub fn take(&mut self, event: &ServiceEvent) -> Result<(), String> {
        match event {
            ServiceEvent::Started { session, peer, .. } => self.begin(("session", session), *peer),
            ServiceEvent::Ordered { label, peer, .. } => self.begin(("order", label), *peer),
            ServiceEvent::FetchBegan { session, peer, .. } => self.begin(("fetch", session), *peer),
            ServiceEvent::Closed { session, .. } => return self.end(("session", session)),
            ServiceEvent::Delivered { label, .. } => return self.end(("order", label)),
            ServiceEvent::FetchEnded { session, .. } => return self.end(("fetch", session)),
            ServiceEvent::NoRoom { peer, refusal: Refusal::Exhausted(what), .. } => {
                return self.check_refusal(*peer, *what);
            }
            _ => {}
        }
        Ok(())
    }

    /// The address of the viewer of a session.
    pub fn peer_of(&self, session: &str) -> Option<SocketAddr> {
        self.begun.get(&("session", session.to_owned())).copied()
    }

    fn begin(&mut self, (kind, name): (&'static str, &str), peer: SocketAddr) {
        self.begun.insert((kind, name.to_owned()), peer);
    }

    fn end(&mut self, (kind, name): (&'static str, &str)) -> Result<(), String> {
        let begun = self.begun.remove(&(kind, name.to_owned()));
        begun.map(|_| ()).ok_or_else(|| format!("{kind} {name} ends, and has not begun"))
    }

    fn check_refusal(&mut self, peer: SocketAddr, what: Exhausted) -> Result<(), String> {
        let sum = |counts: &dyn Fn(&SocketAddr) -> bool| {
            self.begun.values().filter(|peer| counts(peer)).count() as u64
        };
        let user = self.users.get(&peer);
        let of_user = |other: &SocketAddr| user.is_some() && self.users.get(other) == user;
        let (begun, is_right) = match what {
            Exhausted::Streams { max } => {
                let begun = sum(&|_| true);
                (begun, begun >= max as u64)
            }
            Exhausted::AddressStreams { max } => {
                let begun = sum(&|other| other.ip() == peer.ip());
                (begun, begun >= max)
            }
            Exhausted::UserStreams { max } => {
                let begun = sum(&of_user);
                (begun, begun >= u64::from(max))
            }
            Exhausted::UserRate { used, .. } => {
                let begun = sum(&of_user);
                (begun, begun * MOST_RATE >= used.0)
            }
            _ => return Ok(()),
        };
        self.refused_users +=
            u64::from(matches!(what, Exhausted::UserStreams { .. } | Exhausted::UserRate { .. }));
        match is_right {
            true => Ok(()),
            false => Err(format!("{peer} was refused, and only {begun} streams have begun: {what}")),
        }
    }

    /// Compares the viewers that are receiving media now with the limits.
    ///
    /// # Errors
    /// Too many are.
    pub fn check_received(&self, scenario: &Scenario, receiving: &[SocketAddr]) -> Result<(), String> {
        let max = scenario.server.max_streams as u64;
        let of_address = (max * u64::from(scenario.server.address_share_percent) / 100).max(1);
        let count = |counts: &dyn Fn(&SocketAddr) -> bool| {
            receiving.iter().filter(|other| counts(other)).count() as u64
        };
        let check = |whose: &str, received: u64, max: u64| match received > max {
            true => Err(format!("{received} streams are received {whose}, and {max} are allowed")),
            false => Ok(()),
        };
        check("in all", count(&|_| true), max)?;
        for peer in receiving {
            check("at one address", count(&|other| other.ip() == peer.ip()), of_address)?;
            let Some(user) = self.users.get(peer) else { continue };
            let received = count(&|other| self.users.get(other) == Some(user));
            let plan = &scenario.users[*user];
            check("by one user", received, plan.streams.map_or(u64::MAX, u64::from))?;
            let by_rate = plan.bits_per_s.map_or(u64::MAX, |rate| rate / MEAN_RATE);
            check("by the rate of one user", received, by_rate)?;
        }
        Ok(())
    }
}
