//! The configuration of each part of the server. It is made of the options here and nowhere else: a
//! part gets its own, and sees no option of another one.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_core::limits::{MAX_AHEAD_MS, MAX_STREAMS_PER_ENGINE};
use millrace_offload::GsoMode;
use millrace_offload::idle::IdlePolicy;
use millrace_store::cache::{CacheConfig, ReadBackend};
use millrace_web::TrustedProxies;

use super::librarian::LibrarySettings;
use super::pictures::PictureSettings;
use super::reload_requests::ReloadRequests;
use super::web::WebSettings;
use super::{AdaptChoice, AdmissionChoice, FecChoice, ReadChoice, ServeArgs};
use crate::admission::AdmissionConfig;
use crate::limits::control::SPARE_STREAMS;
use crate::limits::session_table_size;
use crate::service::MulticastGroups;
use crate::session::ServerConfig;

/// Streams of a viewer: the media, the first parity, the further ones.
const STREAMS_WITH_FEC: usize = 3;

/// Where the kernel shows the network devices.
const NETWORK_DEVICES: &str = "/sys/class/net";

/// Settings of the engines.
pub(super) struct LoopSettings {
    pub(super) count: u8,
    /// Places for streams in the table of each.
    pub(super) streams: usize,
    /// The cores that they are pinned to.
    pub(super) cpus: Vec<usize>,
    pub(super) idle: IdlePolicy,
    pub(super) burst_ns: u64,
    pub(super) busy_burst_ns: u64,
    pub(super) smooth: bool,
    pub(super) gso: GsoMode,
    /// The first and the last UDP port that may be bound.
    pub(super) udp_ports: (u16, u16),
    /// The first engine's loop turns an offload engine.
    pub(super) has_offload_seat: bool,
    /// Groups that each engine sends to.
    pub(super) multicast: Option<MulticastGroups>,
}

impl ServeArgs {
    /// Of the engines.
    pub(super) fn loop_settings(&self) -> anyhow::Result<LoopSettings> {
        Ok(LoopSettings {
            count: self.engines,
            streams: self.streams_per_engine(),
            cpus: self.cpus.clone(),
            idle: self.idle,
            burst_ns: u64::try_from(self.burst.0.as_nanos())?,
            busy_burst_ns: u64::try_from(self.busy_burst.0.as_nanos())?,
            smooth: self.smooth,
            gso: if self.no_gso { GsoMode::Off } else { GsoMode::Auto },
            udp_ports: self.udp_ports,
            has_offload_seat: self.tcp.is_engine(),
            multicast: self.multicast_groups(),
        })
    }

    /// Places in the table of an engine.
    fn streams_per_engine(&self) -> usize {
        let each = if self.fec == FecChoice::Allow { STREAMS_WITH_FEC } else { 1 };
        // Sessions that do not play have streams in the table too, though they hold no viewer's place.
        let sessions = session_table_size(self.max_streams).div_ceil(usize::from(self.engines));
        (sessions * each + SPARE_STREAMS).min(MAX_STREAMS_PER_ENGINE)
    }

    /// Of the cache.
    pub(super) fn cache_config(&self) -> CacheConfig {
        let backend = match self.read {
            ReadChoice::Auto => ReadBackend::Auto,
            ReadChoice::Uring => ReadBackend::Uring,
            ReadChoice::Threads => ReadBackend::Threads,
        };
        let max_damaged_permille = self.max_damaged.permille();
        CacheConfig { backend, max_damaged_permille, ..CacheConfig::default() }
    }

    /// Of admission.
    fn admission_config(&self) -> AdmissionConfig {
        AdmissionConfig {
            is_on: self.admission == AdmissionChoice::Measured,
            max_busy_permille: u64::from(self.max_busy.permille()),
            link_rate: self.link_rate.bound(Path::new(NETWORK_DEVICES)),
            overload: self.overload,
        }
    }

    /// Of sessions and of the service below them.
    pub(super) fn server_config(&self) -> ServerConfig {
        let session_timeout_ns = u64::try_from(self.session_timeout.0.as_nanos()).unwrap_or(u64::MAX);
        let mut session = ServerConfig { session_timeout_ns, ..ServerConfig::default() };
        let service = &mut session.service;
        service.admission = self.admission_config();
        service.max_streams = self.max_streams;
        service.max_sessions = session_table_size(self.max_streams);
        service.address_share_percent = self.share_per_address.0 as u8;
        service.pause_reservation_ns = u64::try_from(self.pause_reservation.0.as_nanos()).unwrap_or(u64::MAX);
        service.streams_per_engine = self.streams_per_engine();
        // Its range is that of the field.
        service.fast_start_ms =
            u16::try_from(self.fast_start.0.as_millis()).unwrap_or(MAX_AHEAD_MS).min(MAX_AHEAD_MS);
        service.adapt = self.adapt == AdaptChoice::On;
        service.fec = self.fec == FecChoice::Allow;
        service.max_streams_per_address = self.streams_per_address;
        service.max_streams_per_title = self.max_streams_per_title;
        service.max_rate = self.max_rate;
        service.multicast = self.multicast_groups();
        service.packet_sizes = self.packet_sizes.clone();
        service.max_connections_per_address = self.max_connections_per_address;
        service.max_sessions_per_address = self.max_connections_per_address;
        session
    }

    /// Of the web side at this port; `cancel` stops conversions.
    pub(super) fn web_settings(
        &self,
        http: Option<TcpListener>,
        cancel: &Arc<AtomicBool>,
        reload: Arc<ReloadRequests>,
    ) -> WebSettings {
        WebSettings {
            http,
            reload,
            connections_per_address: self.max_connections_per_address,
            proxies: TrustedProxies::new(self.trusted_proxies.clone()),
            memory: self.web_memory,
            uploads: self.uploads,
            ingest: self.ffmpeg.ingest_options(cancel),
            folders: self.absolute_folders(),
        }
    }

    /// Of posters and pictures for seeking.
    pub(super) fn picture_settings(&self) -> PictureSettings {
        PictureSettings {
            ffmpeg: self.ffmpeg.program.clone(),
            sandbox: self.ffmpeg.sandbox(),
            space: self.picture_space,
        }
    }

    /// Of the librarian.
    pub(super) fn library_settings(&self) -> LibrarySettings {
        LibrarySettings {
            folders: self.absolute_folders(),
            follow_symlinks: self.follow_symlinks,
            settle: self.settle.0,
            deleted_files: self.deleted_files,
            ffmpeg: self.ffmpeg.clone(),
            quiet: self.quiet,
            needs_user: self.rights.is_for_users(),
            library: self.library.library.clone(),
        }
    }
}
