//! `millrace serve`: the server. Its settings are here; `plan` makes the configuration of each part
//! of them; `run` starts everything and stops everything, `librarian` keeps the titles in step with folders and store, `uploads` takes in
//! titles that come by HTTP, `maker` makes them for speeds that viewers request, `tcp` starts the
//! offload engine, `invite` prints the lines to paste into a player.

pub(crate) mod access;
mod announce;
mod bind;
mod guide;
mod inherited;
mod inject;
pub(crate) mod invite;
mod librarian;
pub(crate) mod library;
mod link;
mod listen;
mod live;
mod live_sources;
pub(crate) mod maker;
mod mdns;
mod members;
mod multicast;
mod notify;
mod pictures;
mod plan;
mod ports;
mod reload;
mod reload_requests;
mod rests;
pub(crate) mod rights;
mod run;
mod sandbox;
mod status;
mod tcp;
mod tls;
mod transforms;
mod uploads;
pub(crate) mod user;
mod watch;
mod watchdog;
mod web;
mod worker;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use millrace_core::limits;
use millrace_core::units::{BitRate, ByteLen, Count, HumanDuration};
use millrace_offload::idle::IdlePolicy;
use millrace_store::transform::Transforms;
use millrace_store::volume::Volume;
use millrace_web::Network;

use self::librarian::DeletedFiles;
use self::library::LibraryArgs;
use self::link::LinkRate;
use self::listen::{ListenChoice, parse_listen};
use self::multicast::parse_multicast;
use self::rights::RightsArgs;
use self::tcp::TcpArgs;
use self::tls::TlsArgs;
use self::uploads::UploadArgs;
use super::NewStoreArgs;
use super::egress::EgressArgs;
use super::ffmpeg::FfmpegArgs;
use super::percent::Percent;
use super::settings::Values;
use super::terminal::LogFormat;
use crate::admission::OverloadPolicy;
use crate::cast::ChannelSpec;
use crate::live::{LiveSource, RecordingPlan, SourcePair};
use crate::service::{MulticastGroups, PacketSizes};

/// Serve folders of films over RTSP
///
/// Scans the folders, adds the films it finds to the store, and prints the address of each title.
/// New films are added once they have not changed for a few seconds; a file that changes replaces its title, one that is moved keeps it. Without a folder it serves the titles that are
/// already in the store.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  millrace serve ~/films\n  millrace serve /srv/films --cache 4GiB --cpu 1\n  \
                        millrace serve --store /srv/store --listen 10.0.0.5:554 --max-rate 900Mb/s\n  \
                        millrace serve --member /disk1/store --member /disk2/store --member /disk3/store --parity 1\n\nEach setting can also \
                        be a variable (MILLRACE_MAX_RATE) or stand in a file: millrace help config\n\nThe log goes to \
                        standard error; MILLRACE_LOG=debug says more, MILLRACE_LOG=warn less."
)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML) for settings that are neither on the command line nor in a
    /// variable; see also: millrace help config
    #[arg(long, value_name = "FILE", env = "MILLRACE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Folders with films
    #[arg(value_name = "DIR")]
    pub(crate) folders: Vec<PathBuf>,
    #[command(flatten)]
    store: NewStoreArgs,
    /// Address and port of RTSP; port 0 takes any free one [default: all addresses, port 554 if allowed, else 8554]
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, help_heading = "Network")]
    pub(crate) listen: Option<SocketAddr>,
    /// Address and port of HTTP, or off: the page, titles as files and as HLS, the API, figures at /metrics [default: the address of --listen, port 8080
    /// or the next free one]
    #[arg(long, value_name = "ADDR:PORT", help_heading = "Network")]
    pub(crate) http: Option<ListenChoice>,
    /// Host name or address to print in URLs [default: this machine's address]
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    pub(crate) host: Option<String>,
    /// User to run as, for a server that root starts: its ports are opened by root, everything else is this user's. Capabilities are given up but for
    /// those that AF_XDP needs, where it is used [default: the user that starts it]
    #[arg(long, value_name = "NAME", help_heading = "Process")]
    pub(crate) user: Option<String>,
    /// Whether the server keeps itself, once its ports are open, from all files but those that its settings name, from all programs but ffmpeg, and from
    /// system calls that it never needs: auto (as far as the kernel can), require (completely, or it does not start), or off
    #[arg(
        long = "sandbox",
        value_name = "WHEN",
        value_enum,
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Process"
    )]
    pub(crate) own_sandbox: SandboxChoice,
    /// Memory for the media cache: one copy shared by all viewers [default: 256MiB, or a quarter of the memory that a control group, ulimit or the machine
    /// leaves this process, if that is less]
    #[arg(long, value_name = "SIZE", help_heading = "Memory and disks")]
    pub(crate) cache: Option<ByteLen>,
    /// Memory for HTTP responses that are not read from the media cache: playlists, pictures, answers of the API, segments of fragmented MP4. When it is used
    /// up, clients get 503 [default: twice --cache, at least 64MiB and at most 512MiB]
    #[arg(long, value_name = "SIZE", help_heading = "Memory and disks")]
    pub(crate) web_memory: Option<ByteLen>,
    /// Engines: threads that pace and send streams, one core each. All send from the same UDP ports; a new stream goes to the engine with the least load
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Engines")]
    pub(crate) engines: u8,
    /// Pin the engines to these cores, one each, in order
    #[arg(long = "cpu", value_name = "CORE", value_delimiter = ',', help_heading = "Engines")]
    pub(crate) cpus: Vec<usize>,
    /// Behaviour of an engine when nothing is due: busy (spins), adaptive (sleeps until the next
    /// burst departs) or sleeping (the same, at least 1 ms)
    #[arg(long, value_name = "POLICY", default_value = "adaptive", help_heading = "Engines")]
    pub(crate) idle: IdlePolicy,
    /// Most viewers at once; the next one gets 453
    #[arg(long, value_name = "N", default_value_t = crate::limits::DEFAULT_MAX_STREAMS, help_heading = "Who is let in")]
    pub(crate) max_streams: usize,
    /// Highest total of the mean bit rates of all viewers; a viewer that would exceed it gets 453 [default: no limit]
    #[arg(long, value_name = "RATE", help_heading = "Who is let in")]
    pub(crate) max_rate: Option<BitRate>,
    /// Admission: measured (as many viewers as the engines' cores, the disks, the cache and the
    /// links carry according to measurements; the next one gets 453) or off (as many as
    /// --max-streams and --max-rate allow)
    #[arg(long, value_name = "HOW", default_value = "measured", help_heading = "Who is let in")]
    pub(crate) admission: AdmissionChoice,
    /// How busy the core of an engine may become, as a share of the time, before viewers are refused
    #[arg(long, value_name = "PERCENT", default_value_t = Percent(crate::limits::DEFAULT_MAX_BUSY_PERMILLE as f64 / 10.0), help_heading = "Who is let in")]
    pub(crate) max_busy: Percent,
    /// Total rate of the network links: auto (the rate that the hardware reports, less a share for
    /// headers), off, or a rate
    #[arg(long, value_name = "RATE", default_value_t = LinkRate::Auto, help_heading = "Network")]
    pub(crate) link_rate: LinkRate,
    /// What to do when a core has become slower and no longer carries the viewers it has: end-newest (until the rest are in time
    /// again) or share (end no stream; all become late)
    #[arg(long, value_name = "POLICY", default_value = "end-newest", help_heading = "Who is let in")]
    pub(crate) overload: OverloadPolicy,
    /// Time without any sign of life after which a session is closed
    #[arg(long, value_name = "TIME", default_value_t = duration(crate::limits::DEFAULT_SESSION_TIMEOUT_NS), help_heading = "Viewers")]
    pub(crate) session_timeout: HumanDuration,
    /// How long a paused viewer keeps its stream and bit rate; after that PLAY has to reserve them again
    #[arg(long, value_name = "TIME", default_value_t = duration(crate::limits::DEFAULT_PAUSE_RESERVATION_NS), help_heading = "Viewers")]
    pub(crate) pause_reservation: HumanDuration,
    /// Highest number of connections from one client address, by RTSP and by HTTP each
    #[arg(long, value_name = "N", default_value_t = crate::limits::MAX_CONNECTIONS_PER_ADDRESS, help_heading = "Who is let in")]
    pub(crate) max_connections_per_address: usize,
    /// Share of --max-streams and of --max-rate that all viewers at one address may use; one stream is always allowed
    #[arg(long, value_name = "PERCENT", default_value_t = Percent(f64::from(crate::limits::DEFAULT_ADDRESS_SHARE_PERCENT)), value_parser = parse_address_share, help_heading = "Who is let in")]
    pub(crate) share_per_address: Percent,
    /// Most streams at once of all viewers at one address, in place of their share of --max-streams; the share of --max-rate stays [default: by
    /// --share-per-address]
    #[arg(long, value_name = "N", help_heading = "Who is let in")]
    pub(crate) streams_per_address: Option<usize>,
    /// Proxy in front of HTTP, or a network of them such as 10.0.0.0/8, which is trusted to name its clients (X-Forwarded-For, Forwarded). Limits for
    /// one address, log lines and sessions then count the client. Repeat it for each. See also: docs/guide/proxy.md
    #[arg(
        long = "trusted-proxy",
        value_name = "NETWORK",
        value_delimiter = ',',
        help_heading = "Who is let in"
    )]
    pub(crate) trusted_proxies: Vec<Network>,
    /// Most viewers at once of one title, whatever bit rate or speed they watch it at; the next one gets 453 [default: no limit]
    #[arg(long, value_name = "N", help_heading = "Who is let in")]
    pub(crate) max_streams_per_title: Option<usize>,
    /// UDP port range for RTP and RTCP: the first free even port and the next are used
    #[arg(long, value_name = "FIRST-LAST", default_value = "6970-7069", value_parser = parse_ports, help_heading = "Network")]
    pub(crate) udp_ports: (u16, u16),
    /// Media time sent in one burst: shorter is smoother, longer costs less processor time
    #[arg(long, value_name = "TIME", default_value_t = duration(limits::DEFAULT_BURST_NS), help_heading = "Engines")]
    pub(crate) burst: HumanDuration,
    /// Longest burst when the engine's core is busy: bursts grow up to this as the load rises
    #[arg(long, value_name = "TIME", default_value_t = duration(limits::BUSY_BURST_NS), help_heading = "Engines")]
    pub(crate) busy_burst: HumanDuration,
    /// Media time sent at once when a viewer over the RTSP connection begins to play or seeks, so that its buffer fills sooner; only while
    /// there is capacity for as much again as the title needs
    #[arg(long, value_name = "TIME", default_value_t = duration(u64::from(crate::limits::DEFAULT_FAST_START_MS) * 1_000_000), help_heading = "Viewers")]
    pub(crate) fast_start: HumanDuration,
    /// Send every packet at its own time, without bursts
    #[arg(long, help_heading = "Engines")]
    pub(crate) smooth: bool,
    /// Packet sizes for UDP viewers; each gets the largest that its path carries unfragmented: bytes, 1k, 2k, 4k or 8k,
    /// separated by commas, or auto for all of these
    #[arg(long, value_name = "LIST", default_value_t = PacketSizes::default(), help_heading = "Network")]
    pub(crate) packet_sizes: PacketSizes,
    /// Whether the server chooses the bit rate of titles with renditions, and changes it during playback, for sessions that name none
    #[arg(long, value_name = "WHETHER", default_value = "on", help_heading = "Viewers")]
    pub(crate) adapt: AdaptChoice,
    /// Allow clients to request forward error correction (needs titles stored with parity)
    #[arg(long, value_name = "WHETHER", default_value = "allow", help_heading = "Viewers")]
    pub(crate) fec: FecChoice,
    /// Transformation that viewers may ask for with `?transform=NAME`: NAME=STEP, or several steps with + between them. A step is
    /// select:audio=LANG,subtitles=none (which streams are kept), restamp:offset=TIME (clock and time stamps moved) or wasm:FILE (a module);
    /// repeat it for each. See also: docs/ref/transforms.md
    #[arg(long = "transform", value_name = "NAME=STEP", value_delimiter = ';', value_parser = parse_transform, help_heading = "Viewers")]
    pub(crate) transforms: Vec<String>,
    /// Live source: NAME=udp://ADDR:PORT or NAME=rtp://ADDR:PORT, MPEG-TS to an address of this machine or to a multicast group, which may have
    /// ?source=IP and ?interface=NAME; or a URL that ffmpeg fetches, such as rtsp://, http:// or https://. Viewers get it at rtsp://HOST/live/NAME and http://HOST/live/NAME.ts. Repeat it for each; a second one of a name is the backup of the first
    #[arg(long = "live", value_name = "NAME=URL", value_delimiter = ',', help_heading = "Live sources")]
    pub(crate) live: Vec<LiveSource>,
    /// Memory that each live title keeps of its newest media, 32 MiB being half a minute of 8 Mb/s: players by HLS can rewind through half of
    /// it, and a viewer by TCP who lags by all of it is ended. Live titles together have half of --cache
    #[arg(long, value_name = "SIZE", default_value_t = ByteLen(crate::limits::live::DEFAULT_LIVE_BYTES), help_heading = "Live sources")]
    pub(crate) live_memory: ByteLen,
    /// Channel: NAME=PLAYLIST.m3u, titles of the store or files that are played in a loop as the live title NAME; in the configuration
    /// file also a table [[channel]] with name, items or playlist, to (udp:// or rtp:// addresses), zone and show (what begins at a time of
    /// day). Repeat it for each. See also: docs/guide/channels.md
    #[arg(
        long = "channel",
        value_name = "NAME=PLAYLIST",
        value_delimiter = ';',
        help_heading = "Live sources"
    )]
    pub(crate) channels: Vec<ChannelSpec>,
    /// Recording of a live title or channel at a time of day: LIVE=HH:MM/LENGTH, every day; in the configuration file also a table
    /// [[record]] with live, at, for, days or date, title and zone. Repeat it for each. See also: docs/guide/live.md
    #[arg(
        long = "record",
        value_name = "LIVE=TIME/LENGTH",
        value_delimiter = ';',
        help_heading = "Live sources"
    )]
    pub(crate) records: Vec<RecordingPlan>,
    /// Multicast groups that players may have live titles and channels sent to (RTSP SETUP with multicast): FIRST/PREFIX, one range of IPv4
    /// and one of IPv6 at most, and after a comma each ttl=1..255 [1], interface=NAME [by the route] and ports=FIRST-LAST [20000-20999]. For the
    /// networks of one organisation 239.192.0.0/16 is usual (RFC 2365). See also: docs/guide/channels.md [default: none]
    #[arg(long, value_name = "GROUPS", value_parser = parse_multicast, help_heading = "Live sources")]
    pub(crate) multicast: Option<MulticastGroups>,
    /// Announce RTP casts to multicast groups by SAP (RFC 2974), so that players list them: outputs of channels, and casts that viewers have started
    #[arg(long, help_heading = "Live sources")]
    pub(crate) sap: bool,
    /// Announce RTSP and HTTP in the local network by multicast DNS (RFC 6762), so that players and file managers list this server
    #[arg(long, help_heading = "Network")]
    pub(crate) mdns: bool,
    /// Send every datagram separately even if the kernel supports segmentation offload
    #[arg(long, help_heading = "Network")]
    pub(crate) no_gso: bool,
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
    #[command(flatten)]
    pub(crate) tcp: TcpArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    #[command(flatten)]
    pub(crate) rights: RightsArgs,
    #[command(flatten)]
    pub(crate) uploads: UploadArgs,
    #[command(flatten)]
    pub(crate) library: LibraryArgs,
    /// How the cache reads: auto, uring or threads
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Memory and disks")]
    pub(crate) read: ReadChoice,
    /// Highest share of a title that may be damaged beyond repair, over the last 64 extents (16 MiB) or the whole title if it is
    /// shorter. Up to it viewers do not get the damaged packets; above it their stream is ended (0%: at the first damaged packet)
    #[arg(long, value_name = "PERCENT", default_value_t = Percent(f64::from(limits::DEFAULT_MAX_DAMAGED_PERMILLE) / 10.0), help_heading = "Memory and disks")]
    pub(crate) max_damaged: Percent,
    /// Space for fast forward, rewind and slow motion that are built because a viewer asks for them, on all members together; those not
    /// watched for the longest time are removed for others. 0B: build none
    #[arg(long, value_name = "SIZE", default_value_t = ByteLen(crate::limits::trick::DEFAULT_TRICK_SPACE_BYTES), help_heading = "Memory and disks")]
    pub(crate) trick_space: ByteLen,
    /// Space for posters and pictures for seeking, which are made of titles in the background, by ffmpeg; 0B: make none
    #[arg(long, value_name = "SIZE", default_value_t = ByteLen(crate::limits::DEFAULT_PICTURE_SPACE_BYTES), help_heading = "Memory and disks")]
    pub(crate) picture_space: ByteLen,
    /// Write every counter into this file as JSON, once a second; each time the file is replaced as a whole
    #[arg(long, value_name = "FILE", help_heading = "Log")]
    pub(crate) stats: Option<PathBuf>,
    /// Fault injection for tests: a file with lines such as `member 1 eio`, re-read while the server runs
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) inject: Option<PathBuf>,
    /// Follow all symbolic links in the folders; otherwise only links to files within the same folder
    #[arg(long, help_heading = "Folders")]
    pub(crate) follow_symlinks: bool,
    /// How long a file in a folder must not have changed before it is added; five times as long for one that was seen to grow
    #[arg(long, value_name = "TIME", default_value_t = HumanDuration(crate::limits::control::SETTLE), help_heading = "Folders")]
    pub(crate) settle: HumanDuration,
    /// What to do with a title whose file was deleted from its folder: keep (the store has a copy) or remove
    #[arg(long, value_name = "WHETHER", default_value = "keep", help_heading = "Folders")]
    pub(crate) deleted_files: DeletedFiles,
    #[command(flatten)]
    pub(crate) ffmpeg: FfmpegArgs,
    /// What log lines look like: text, or json (one object a line, with the id of the request or session that a line is about)
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Log")]
    pub(crate) log_format: LogFormat,
    /// No progress bars and no list of titles; the log stays
    #[arg(long, short, help_heading = "Log")]
    pub(crate) quiet: bool,
}

/// Ports of RTSP that are tried without --listen: the standard one needs privileges.
pub(crate) const DEFAULT_PORTS: [u16; 2] = [554, 8554];

/// How viewers are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AdmissionChoice {
    /// By the measured capacity of the machine, and by the operator's limits.
    Measured,
    /// By the operator's limits alone.
    Off,
}

/// Whether the server confines itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SandboxChoice {
    /// As far as the kernel can.
    Auto,
    /// Completely, or it does not start.
    Require,
    /// Not at all.
    Off,
}

/// How the cache reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReadChoice {
    /// io_uring if the kernel allows it, else threads.
    Auto,
    /// io_uring, or fail.
    Uring,
    /// A few threads with pread.
    Threads,
}

/// Whether the server chooses renditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AdaptChoice {
    /// Unless the session names one.
    On,
    /// Only if the session requests it.
    Off,
}

/// Whether viewers get FEC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FecChoice {
    /// On request.
    Allow,
    /// Never.
    Off,
}

/// A limit as people write it.
fn duration(ns: u64) -> HumanDuration {
    HumanDuration(Duration::from_nanos(ns))
}

/// Whole percents; the sign may be missing.
fn parse_address_share(text: &str) -> Result<Percent, String> {
    let number: Option<u8> = text.strip_suffix('%').unwrap_or(text).trim_end().parse().ok();
    let number = number.filter(|percent| (1..=100).contains(percent));
    number.map(|number| Percent(f64::from(number))).ok_or_else(|| format!("got \"{text}\"; write 1% to 100%"))
}

/// The text, if it makes sense. Modules are read.
fn parse_transform(text: &str) -> Result<String, String> {
    Transforms::parse(&[text]).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn parse_ports(text: &str) -> Result<(u16, u16), String> {
    let error =
        || format!("got \"{text}\"; write FIRST-LAST, both from 1024 to 65535, for example 6970-7069");
    let (first, last) = text.split_once('-').ok_or_else(error)?;
    let (first, last): (u16, u16) = (first.parse().map_err(|_| error())?, last.parse().map_err(|_| error())?);
    if first >= 1024 && last > first { Ok((first, last)) } else { Err(error()) }
}

impl ServeArgs {
    /// The served folders, as titles record where their sources lie.
    fn absolute_folders(&self) -> Vec<PathBuf> {
        let absolute = |folder: &PathBuf| std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        self.folders.iter().map(absolute).collect()
    }

    /// The volume, made if there is none.
    pub(crate) fn open_volume(&self) -> anyhow::Result<Volume> {
        self.store.open_any_or_create().map_err(|error| user::explain_denied(self.user.as_deref(), error))
    }

    /// The transformations, with their modules.
    pub(crate) fn named_transforms(&self) -> anyhow::Result<Transforms> {
        Transforms::parse(&self.transforms).map_err(|error| anyhow::anyhow!("--transform: {error}"))
    }

    /// Checks what no setting shows by itself.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.cpus.is_empty() || self.cpus.len() == usize::from(self.engines),
            "--cpu: got {} for {}; give one core for each engine",
            Count(self.cpus.len() as u64, "core"),
            Count(u64::from(self.engines), "engine")
        );
        let most = limits::MAX_STREAMS_PER_ENGINE * usize::from(self.engines);
        anyhow::ensure!(
            self.max_streams <= most,
            "--max-streams: got {}, at most {most} with {}",
            self.max_streams,
            Count(u64::from(self.engines), "engine")
        );
        self.egress.check()?;
        self.tls.check()?;
        self.rights.check()?;
        self.library.check()?;
        self.tcp.check(self.listen.map(|listen| listen.ip()))?;
        self.named_transforms()?;
        SourcePair::all(&self.live)?;
        for folder in &self.folders {
            anyhow::ensure!(
                folder.is_dir(),
                "{}: {}",
                folder.display(),
                if folder.is_file() {
                    "a file, not a folder; add it with: millrace add FILE"
                } else {
                    "no such folder"
                }
            );
        }
        Ok(())
    }

    /// Addresses to listen on, in order of preference: the first that can be bound is taken.
    pub(crate) fn listen_choices(&self) -> Vec<SocketAddr> {
        match self.listen {
            Some(addr) => vec![addr],
            None => {
                let any = |ip: IpAddr| DEFAULT_PORTS.map(|port| SocketAddr::new(ip, port));
                let v6 = any(IpAddr::from([0u16; 8]));
                v6.into_iter().chain(any(IpAddr::from([0u8; 4]))).collect()
            }
        }
    }
}

/// Serves until a signal comes. `values` are those that `args` were made of.
pub(crate) fn run(args: &ServeArgs, values: Values) -> anyhow::Result<ExitCode> {
    run::run(args, values).map_err(sandbox::explain_error)
}

#[cfg(test)]
mod tests {
    use super::{Percent, parse_address_share, parse_listen};

    #[test]
    fn parse_listen_without_address_or_port_returns_error() {
        assert_eq!(parse_listen("[::]:8554").unwrap().port(), 8554);
        for text in ["8554", ":8554", "0.0.0.0", "localhost:8554", "::8554", ""] {
            let error = parse_listen(text).unwrap_err();
            assert!(error.contains(text) && error.contains("0.0.0.0:8554"), "{error}");
        }
    }

    #[test]
    fn parse_address_share_accepts_only_whole_percentages() {
        for (text, percent) in [("50%", 50.0), ("7", 7.0), ("100 %", 100.0)] {
            assert_eq!(parse_address_share(text), Ok(Percent(percent)));
        }
        for text in ["0%", "101%", "0.5%", "", "%", "x"] {
            assert!(parse_address_share(text).unwrap_err().contains("1% to 100%"), "{text}");
        }
    }
}
