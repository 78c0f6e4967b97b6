//! Titles that are made of another title: those of one parent, and their fate when the parent goes.

use std::cmp::Reverse;

use millrace_core::ids::TitleId;
use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::units::BitRate;

use super::resize::name_rendition;
use super::state::Volume;
use crate::error::StoreError;
use crate::format::title_info::TitleInfo;

/// One of the bit rates available for a title: the title itself, or one of its renditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendition {
    /// Its name.
    pub name: RenditionName,
    /// Name of the title in the store.
    pub title: String,
    /// Mean bit rate.
    pub mean_rate: BitRate,
    /// Highest bit rate over windows of 1 s.
    pub peak_rate: BitRate,
}

impl Rendition {
    /// Returns the bit rates available for `parent`, best first: itself and those of `others` that
    /// are renditions of it. Empty if it has none.
    pub fn of<'a>(parent: &'a TitleInfo, others: impl IntoIterator<Item = &'a TitleInfo>) -> Vec<Self> {
        let is_of_it = |info: &&TitleInfo| info.derived.is_some_and(|derived| derived.parent == parent.id);
        let mut found: Vec<Self> = std::iter::once(parent)
            .chain(others.into_iter().filter(is_of_it))
            .filter_map(|info| {
                Some(Self {
                    name: info.rendition_name()?,
                    title: info.name.clone(),
                    mean_rate: info.mean_rate,
                    peak_rate: info.peak_rate,
                })
            })
            .collect();
        // Stable: of two that are alike the title itself is first.
        found.sort_by_key(|rendition| Reverse(rendition.mean_rate));
        if found.len() > 1 { found } else { Vec::new() }
    }
}

impl Volume {
    /// The titles made of `parent`, by name. A look at names that are in memory, and at one row of the catalogue for each that is
    /// found.
    ///
    /// # Errors
    /// If the catalogue cannot be used.
    pub fn derived_of(&self, parent: TitleId) -> Result<Vec<TitleInfo>, StoreError> {
        self.inner.with_catalogue(move |catalogue| catalogue.derived_of(parent, None))
    }

    /// Those that show `parent` at other speeds, by speed.
    ///
    /// # Errors
    /// As [`Volume::derived_of`].
    pub fn speeds_of(&self, parent: TitleId) -> Result<Vec<(Scale, TitleInfo)>, StoreError> {
        let speed = |info: TitleInfo| Some((info.derived?.speed()?, info));
        let mut speeds: Vec<_> = self.derived_of(parent)?.into_iter().filter_map(speed).collect();
        speeds.sort_by_key(|(scale, _)| *scale);
        Ok(speeds)
    }

    /// Returns the bit rates available for `parent`, itself included, best first. Empty if it has
    /// no renditions.
    ///
    /// # Errors
    /// As [`Volume::derived_of`]; if there is no such title.
    pub fn renditions_of(&self, parent: TitleId) -> Result<Vec<Rendition>, StoreError> {
        let found = self.inner.with_catalogue(move |catalogue| catalogue.by_id(parent))?;
        let info = found.ok_or(StoreError::NoTitle { id: parent })?;
        Ok(Rendition::of(&info, &self.derived_of(parent)?))
    }

    /// Names a title among its future renditions.
    ///
    /// # Errors
    /// If it is derived itself or has another name already; if there is no such title, or the store cannot be written to.
    pub fn name_rendition(&self, id: TitleId, name: RenditionName) -> Result<(), StoreError> {
        name_rendition(&self.inner, id, name)
    }

    /// Removes titles whose parent is gone, which a removal that was cut short has left. Only with all members there: the parent
    /// may lie on those that are not.
    pub(super) fn remove_orphans(&self) -> Result<(), StoreError> {
        let orphans = self.inner.with_catalogue(|catalogue| catalogue.orphans())?;
        if orphans.is_empty() || self.inner.members.report().iter().any(|slot| slot.absent.is_some()) {
            return Ok(());
        }
        for (id, parent) in orphans {
            // Under the lock: renditions become visible before their title, whoever makes them.
            self.remove_if_there(id, |usable| Ok(usable.iter().all(|dirs| !dirs.title(parent).exists())))?;
        }
        Ok(())
    }
}
