//! The cache over files: reads, eviction, failures of members, live and transformed titles.

mod cache_common;
mod cache_content;
mod cache_crcs;
mod cache_eviction;
mod cache_failure;
mod cache_growing;
mod cache_live;
mod cache_members;
mod cache_rate;
mod cache_repaired;
mod cache_sharing;
mod cache_store;
mod cache_stress;
mod cache_stripes;
#[path = "../support/crc_support.rs"]
mod crc_support;
#[path = "../support/members_support.rs"]
mod members_support;
#[path = "../support/repair_support.rs"]
mod repair_support;
mod transform_cache;
