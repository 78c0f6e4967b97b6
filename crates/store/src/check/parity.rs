//! The promises of a member's copy of the parity's sums and times.

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use super::report::cause;
use super::title_check::{Records, TitleCheck, at};
use crate::format::manifest::PARITY_META_FILE;
use crate::meta::MetaFile;
use crate::stripes::StripeLayout;
use crate::volume::open_parity_meta;

/// Checks what needs no parity.
pub(super) fn check(title: &mut TitleCheck<'_, '_>, default: Option<&MetaFile>) {
    let Some(stripes) = title.manifest.stripes().filter(|stripes| stripes.m() > 0) else { return };
    let Some(parity) = parity_meta_agrees_with_manifest(title, &stripes) else { return };
    if title.meta_blocks_are_whole(&parity)
        && let Some(default) = default
    {
        parity_times_agree_with_meta(title, &stripes, &parity, default);
    }
}

fn parity_meta_agrees_with_manifest(
    title: &mut TitleCheck<'_, '_>,
    stripes: &StripeLayout,
) -> Option<MetaFile> {
    if !title.has(PARITY_META_FILE) {
        return None;
    }
    let path = title.dir.join(PARITY_META_FILE);
    let result = open_parity_meta(&path, &title.manifest.title, stripes);
    result.map_err(|error| title.damaged("parity_meta_agrees_with_manifest", &path, cause(&error))).ok()
}

/// Parity is at the time of its stripe's first packet, and has no flags.
fn parity_times_agree_with_meta(
    title: &mut TitleCheck<'_, '_>,
    stripes: &StripeLayout,
    parity: &MetaFile,
    default: &MetaFile,
) {
    debug_assert_eq!(usize::from(default.packet_bytes()), DEFAULT_PACKET_BYTES);
    let per_stripe = stripes.m() as u64 * u64::from(stripes.unit_packets());
    let (mut records, mut media) = (Records::new(parity), Records::new(default));
    for packet in 0..u64::from(parity.packets()) {
        let expected = media.time(packet / per_stripe * u64::from(stripes.stripe_packets()));
        let found = records.get(packet);
        if found.map(|record| (Some(record.time()), record.flags())) != Some((expected, 0)) {
            let what = format!(
                "parity packet {packet} is at {}, or has flags; its stripe begins at {}",
                at(found.map(|record| record.time())),
                at(expected)
            );
            return title.damaged("parity_times_agree_with_meta", parity.path(), what);
        }
    }
}
