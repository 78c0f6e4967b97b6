//! The renditions of a title: which of them a stream gets, and which its viewer wishes
//! (`docs/design/0030-renditions.md`).
//!
//! `sent` and `wanted` are two places among the renditions: at each beginning of a run
//! (`switching`), `sent` becomes `wanted`.

use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;

use super::adapt::{Adapter, Cause};
use super::config::RateBasis;
use super::ports::Rendition;
use super::refusal::Refusal;

/// Which rendition a viewer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenditionWish {
    /// The one of this name.
    Named(String),
    /// The server chooses, and changes it while it plays.
    Auto,
}

impl RenditionWish {
    /// Parses a viewer's notation.
    pub fn parse(text: &str) -> Self {
        if text.eq_ignore_ascii_case("auto") { Self::Auto } else { Self::Named(text.to_ascii_lowercase()) }
    }
}

/// What becomes of a wish for a rendition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The rendition that will be sent.
    pub to: RenditionName,
    /// When that begins.
    pub begins: Begins,
}

/// When a rendition begins to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// It is sent already.
    Now,
    /// At this place in the title.
    At(MediaTicks),
    /// When a change has been made that was asked for before.
    Next,
    /// When the stream is played the next time.
    WithPlay,
}

/// The renditions of a stream's title, and which of them it gets. There are none, or at least two.
#[derive(Clone, Debug, Default)]
pub(super) struct Renditions {
    /// The best first.
    pub(super) all: Box<[Rendition]>,
    /// Which of them is the title itself.
    pub(super) own: usize,
    /// What its last run sent at normal speed.
    pub(super) sent: usize,
    /// The rendition to send.
    pub(super) wanted: usize,
    /// Why it differs from `sent`.
    pub(super) cause: Option<Cause>,
    /// The server chooses.
    pub(super) is_auto: bool,
    /// By this.
    pub(super) adapter: Adapter,
}

impl Renditions {
    /// Those of a title of this name.
    pub(super) fn new(all: Vec<Rendition>, title: &str, is_auto: bool) -> Self {
        let Some(own) = all.iter().position(|rendition| rendition.title == title) else {
            return Self::default();
        };
        Self {
            all: all.into_boxed_slice(),
            own,
            sent: own,
            wanted: own,
            cause: None,
            is_auto,
            adapter: Adapter::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The title that was made for this one; `None`: it is the title itself, or there is no other.
    pub(super) fn made(&self, rendition: usize) -> Option<&str> {
        self.all.get(rendition).filter(|_| rendition != self.own).map(|rendition| rendition.title.as_str())
    }

    /// Whether the title of this name was made for this one.
    pub(super) fn have_made(&self, name: &str) -> bool {
        (0..self.all.len()).any(|rendition| self.made(rendition) == Some(name))
    }

    /// Returns whether the made title of this name is the one sent or the one wanted.
    pub(super) fn needs(&self, name: &str) -> bool {
        [self.sent, self.wanted].into_iter().any(|rendition| self.made(rendition) == Some(name))
    }

    /// The stream stands in the title itself.
    pub(super) fn go_back_to_title(&mut self) {
        self.sent = self.own;
    }

    pub(super) fn name(&self, rendition: usize) -> Option<RenditionName> {
        self.all.get(rendition).map(|rendition| rendition.name)
    }

    /// # Errors
    /// There is none of this name.
    pub(super) fn place_of(&self, name: &str) -> Result<usize, Refusal> {
        if self.is_empty() {
            return Err(Refusal::NoRenditions);
        }
        let found = self.all.iter().position(|rendition| rendition.name.as_str() == name);
        found.ok_or_else(|| Refusal::no_rendition(&self.all))
    }

    /// Returns the bit rate of a rendition; 0 if there are none.
    pub(super) fn rate(&self, rendition: usize, basis: RateBasis) -> u64 {
        let of = |rendition: &Rendition| match basis {
            RateBasis::Mean => rendition.mean_rate.0,
            RateBasis::Peak => rendition.peak_rate.0,
        };
        self.all.get(rendition).map_or(0, of)
    }

    /// Returns whether the rendition to send differs from the one sent.
    pub(super) fn is_changing(&self) -> bool {
        self.sent != self.wanted
    }

    /// Returns the next better one that is available and not avoided at the moment.
    pub(super) fn higher(&self, can: impl Fn(&usize) -> bool) -> Option<usize> {
        (0..self.sent).rev().find(can)
    }

    /// The lowest one of those, if that is not sent.
    pub(super) fn lowest(&self, can: impl Fn(&usize) -> bool) -> Option<usize> {
        (self.sent + 1..self.all.len()).rev().find(can)
    }

    /// To begin with the next lower one of those, if the server chooses and there is one.
    pub(super) fn begin_lower(&mut self, can: impl Fn(&Self, usize) -> bool) -> bool {
        let mut lower = self.wanted + 1..self.all.len();
        let lower = lower.find(|rendition| self.is_auto && can(self, *rendition));
        if let Some(lower) = lower {
            (self.wanted, self.sent) = (lower, lower);
        }
        lower.is_some()
    }

    /// Returns the best one within this share of the current rate (thousandths), or the lowest.
    pub(super) fn lower(
        &self,
        through_permille: u64,
        basis: RateBasis,
        can: impl Fn(&usize) -> bool,
    ) -> Option<usize> {
        let lowest = self.lowest(&can)?;
        let through = self.rate(self.sent, basis).saturating_mul(through_permille) / 1_000;
        let fits = |rendition: &usize| self.rate(*rendition, basis) <= through && can(rendition);
        Some((self.sent + 1..lowest).find(fits).unwrap_or(lowest))
    }

    /// Returns the bits a second saved once the wanted rendition is sent.
    pub(super) fn relief(&self, basis: RateBasis) -> u64 {
        self.rate(self.sent, basis).saturating_sub(self.rate(self.wanted, basis))
    }

    /// Returns a stream's rate at this speed; during a switch, one that covers both renditions.
    pub(super) fn cost(&self, scale: Scale, basis: RateBasis) -> u64 {
        if scale.is_normal() {
            self.rate(self.sent, basis).max(self.rate(self.wanted, basis))
        } else {
            self.rate(self.own, basis)
        }
    }
}
