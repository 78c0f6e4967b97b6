//! `millrace ls`: the contents of the store.

use std::collections::HashSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use clap::Args;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::{BitRate, ByteLen};
use millrace_store::pictures::PictureFiles;
use millrace_store::volume::{ListedTitle, Rendition, TitleInfo, Volume};
use millrace_web::{PicturesState, TitleContext, TitleDescription, folders_of};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::StoreArgs;
use super::objects::ObjectArgs;
use super::progress::codecs;
use super::remote::{Remote, RemoteArgs};
use super::serve::{DEFAULT_PORTS, invite};
use super::terminal::name;
use super::title_names::fits;
use crate::date::rfc1123;
use crate::limits::control::LS_ANSWER;

/// List the titles in the store
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace ls\n  millrace ls 'news-*'\n  millrace ls --urls\n  millrace ls --urls rtsp://tv.example:8554/ > addresses.txt\n  \
                  millrace ls --json | jq '.[].name'\n  millrace ls --server http://tv.example:8080/\n  \
                  millrace ls --from s3://films/hotel"
)]
pub(super) struct LsArgs {
    /// Titles to list: names, ids, or patterns of names: * stands for any characters, ? for one
    #[arg(value_name = "TITLE")]
    titles: Vec<String>,
    /// Also list the titles built from others: for fast forward, rewind and slow motion, and renditions
    #[arg(long)]
    all: bool,
    /// Print everything known about every title as one JSON array, with the fields of a server's API
    /// (/api/v1/titles)
    #[arg(long)]
    json: bool,
    /// Print the address of every title, one per line, each beginning with BASE [default: the server on this machine,
    /// port 554 or 8554]
    #[arg(long, value_name = "BASE", num_args = 0..=1, default_missing_value = "", conflicts_with = "json")]
    urls: Option<String>,
    /// List the titles of an object store instead: s3://BUCKET/PREFIX or file:///DIR
    #[arg(long, value_name = "URL", conflicts_with_all = ["server", "urls"])]
    from: Option<String>,
    #[command(flatten)]
    objects: ObjectArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl LsArgs {
    /// The names of the titles that are asked for; an error if one that is named is not there.
    fn named(&self, all: impl Iterator<Item = (String, String)>) -> anyhow::Result<HashSet<String>> {
        let all: Vec<(String, String)> = all.collect();
        let fit = |wanted: &String| {
            let found: Vec<String> = all
                .iter()
                .filter(|(name, id)| fits(wanted, name, id))
                .map(|(name, _)| name.clone())
                .collect();
            anyhow::ensure!(!found.is_empty(), "{wanted}: no such title; see: millrace ls");
            Ok(found)
        };
        Ok(self.titles.iter().map(fit).collect::<anyhow::Result<Vec<_>>>()?.concat().into_iter().collect())
    }
}

/// A title as JSON: the fields of the server's API, as `--server` prints them, and fields that only
/// the store has.
#[derive(Serialize)]
struct JsonTitle {
    #[serde(flatten)]
    described: TitleDescription,
    /// Fields of its manifest that the description lacks.
    #[serde(flatten)]
    stored: Map<String, Value>,
    #[serde(flatten)]
    state: StoreState,
}

impl JsonTitle {
    fn new(info: TitleInfo, context: TitleContext, state: StoreState) -> anyhow::Result<Self> {
        let Value::Object(mut stored) = serde_json::to_value(&info)? else {
            anyhow::bail!(
                "{}: the title cannot be written as JSON; check the store: millrace fsck",
                info.name
            );
        };
        let described = TitleDescription::new(info, context);
        for old_form in ["duration", "mean_rate", "peak_rate", "constant_rate"] {
            stored.remove(old_form);
        }
        if let Value::Object(fields) = serde_json::to_value(&described)? {
            stored.retain(|field, _| !fields.contains_key(field));
        }
        Ok(Self { described, stored, state })
    }
}

/// State of a title in a store.
#[derive(Serialize)]
struct StoreState {
    /// Whether enough of its members are there.
    playable: bool,
    /// If it cannot: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// And which members are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingMember>,
    /// Of a title that was made because a viewer asked for it: when it was watched last, or made, seconds since 1970 (UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_unix_s: Option<u64>,
    /// Whether serving found damage in it, and no scrub has found it whole or repaired it since.
    damaged: bool,
}

impl StoreState {
    fn of(volume: &Volume, title: &ListedTitle, damaged: bool) -> Self {
        let members = volume.members();
        let lost = title.lost(|slot| members.is_usable(slot));
        let reason = lost.as_ref().map(ToString::to_string);
        let member = |&member: &usize| MissingMember { member, dir: members.dir(member) };
        let missing = lost.iter().flat_map(|lost| &lost.slots).map(member).collect();
        let last_used_unix_s = last_use(volume, &title.info);
        Self { playable: lost.is_none(), reason, missing, last_used_unix_s, damaged }
    }
}

#[derive(Serialize)]
struct MissingMember {
    member: usize,
    #[serde(serialize_with = "as_text")]
    dir: PathBuf,
}

/// A path that is not text is shown as well as it can be.
fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// A title as the API has it.
#[derive(Deserialize)]
pub(super) struct RemoteTitle {
    name: String,
    /// Older servers do not send it.
    #[serde(default)]
    title: String,
    bytes: u64,
    duration_s: f64,
    mean_bits_per_s: u64,
    peak_bits_per_s: u64,
    streams: Vec<RemoteStream>,
    renditions: Vec<String>,
}

#[derive(Deserialize)]
struct RemoteStream {
    codec: String,
}

impl RemoteTitle {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One line about it, for people.
    pub(super) fn line(self) -> String {
        let TitleRow { name, length, mean, peak, size, rest, .. } = TitleRow::from(self);
        format!("{name}  {length}  {mean} (peak {peak})  {size}  {rest}")
    }
}

/// A line of the table.
struct TitleRow {
    name: String,
    /// Display name.
    title: String,
    length: String,
    mean: BitRate,
    peak: BitRate,
    size: ByteLen,
    /// Codecs and further remarks.
    rest: String,
}

impl From<RemoteTitle> for TitleRow {
    fn from(title: RemoteTitle) -> Self {
        let codecs: Vec<_> = title.streams.iter().map(|stream| name(&stream.codec)).collect();
        // The title itself is the first of its renditions.
        let label = |rendition: &String| rendition.split_once('@').map(|(_, label)| name(label));
        let others: Vec<_> = title.renditions.iter().filter_map(label).collect();
        let others =
            if others.is_empty() { String::new() } else { format!("; also as {}", others.join(", ")) };
        Self {
            name: name(&title.name),
            title: name(&title.title),
            length: MediaTicks((title.duration_s * MEDIA_HZ as f64).round() as u64).to_string(),
            mean: BitRate(title.mean_bits_per_s),
            peak: BitRate(title.peak_bits_per_s),
            size: ByteLen(title.bytes),
            rest: codecs.join(" + ") + &others,
        }
    }
}

impl TitleRow {
    /// `remarks` follow the codecs.
    fn of(title: &TitleInfo, remarks: &str) -> Self {
        Self {
            name: name(&title.name),
            title: name(&title.display_name()),
            length: title.duration.to_string(),
            mean: title.mean_rate,
            peak: title.peak_rate,
            size: ByteLen(title.bytes),
            rest: codecs(title) + remarks,
        }
    }
}

/// Lists the titles of a running server.
fn run_remote(args: &LsArgs, remote: &Remote) -> anyhow::Result<ExitCode> {
    if args.all || args.urls.is_some() {
        return Err(super::usage(anyhow::anyhow!(
            "--server: lists titles, or with --json everything that its API says; --all and --urls are for a store"
        )));
    }
    remote.sign_in()?;
    let mut listed: serde_json::Value = remote.get("api/v1/titles")?;
    if let Some(titles) = listed["titles"].as_array_mut() {
        let of =
            |title: &serde_json::Value, field: &str| title[field].as_str().unwrap_or_default().to_owned();
        let found = args.named(titles.iter().map(|title| (of(title, "name"), of(title, "id"))))?;
        titles.retain(|title| args.titles.is_empty() || found.contains(&of(title, "name")));
    }
    if args.json {
        super::print_json(&listed["titles"])?;
        return Ok(ExitCode::SUCCESS);
    }
    let titles = Vec::<RemoteTitle>::deserialize(&listed["titles"])
        .with_context(|| format!("{}: cannot read the list of titles", remote.place()))?;
    table(&titles.into_iter().map(TitleRow::from).collect::<Vec<_>>())?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the titles of an object store.
fn run_library(args: &LsArgs, from: &str) -> anyhow::Result<ExitCode> {
    if args.store.is_typed() {
        return Err(super::usage(anyhow::anyhow!(
            "--from: means an object store, and --store and --member a store on this machine; omit one of them"
        )));
    }
    let from = super::objects::library_url("--from", from)?;
    let listing = args.objects.open(&from, &super::cancel_on_signals()?)?.list()?;
    super::objects::warn_unreadable(&listing);
    let mut titles: Vec<TitleInfo> = Vec::new();
    for manifest in super::objects::named(&listing, &args.titles)? {
        titles.push(manifest.title.clone());
        titles.extend(
            args.all
                .then(|| listing.derived_from(manifest.title.id))
                .into_iter()
                .flatten()
                .map(|m| m.title.clone()),
        );
    }
    let all: Vec<TitleInfo> = listing.titles.iter().map(|manifest| manifest.title.clone()).collect();
    let derived: Vec<TitleInfo> = all.iter().filter(|info| info.derived.is_some()).cloned().collect();
    if args.json {
        let rows = titles.into_iter().map(|info| {
            let pictures = PicturesState::Never("an object store has none".to_owned());
            let context = context(&info, &all, &derived, pictures);
            let state = StoreState {
                playable: true,
                reason: None,
                missing: Vec::new(),
                last_used_unix_s: None,
                damaged: false,
            };
            JsonTitle::new(info, context, state)
        });
        super::print_json(&rows.collect::<anyhow::Result<Vec<_>>>()?)?;
    } else {
        let row = |title: &TitleInfo| TitleRow::of(title, &renditions(title, &derived));
        table(&titles.iter().map(row).collect::<Vec<_>>())?;
    }
    Ok(if listing.unreadable.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the titles.
fn table(rows: &[TitleRow]) -> anyhow::Result<()> {
    let mut out = super::terminal::stdout();
    if rows.is_empty() {
        writeln!(out, "no titles yet; add one with: millrace add FILE")?;
        return Ok(());
    }
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).max(5);
    writeln!(
        out,
        "{:width$}  {:>11}  {:>10}  {:>10}  {:>9}  CODECS  (TITLE)",
        "NAME", "LENGTH", "MEAN", "PEAK", "SIZE"
    )?;
    for TitleRow { name, title, length, mean, peak, size, rest } in rows {
        let (mean, peak, size) = (mean.to_string(), peak.to_string(), size.to_string());
        // A display name equal to the name adds no information.
        let title = if title.is_empty() || title == name { String::new() } else { format!("  ({title})") };
        writeln!(out, "{name:width$}  {length:>11}  {mean:>10}  {peak:>10}  {size:>9}  {rest}{title}")?;
    }
    Ok(())
}

/// Where the addresses of the server on this machine begin, if it listens on one of the ports that it takes by itself.
fn local_server() -> anyhow::Result<String> {
    let listens = |port: &u16| {
        let local = SocketAddr::from(([127, 0, 0, 1], *port));
        TcpStream::connect_timeout(&local, LS_ANSWER).is_ok()
    };
    let port = DEFAULT_PORTS.into_iter().find(listens).ok_or_else(|| {
        anyhow::anyhow!(
            "--urls: no server on this machine at port 554 or 8554; give its address: --urls rtsp://HOST:PORT/"
        )
    })?;
    Ok(invite::base_url(&invite::own_host(SocketAddr::from(([0, 0, 0, 0], port))), port))
}

/// Returns the facts for the description of a title that its manifest lacks. The folders that a server
/// serves are not known here.
fn context(
    title: &TitleInfo,
    all: &[TitleInfo],
    derived: &[TitleInfo],
    pictures: PicturesState,
) -> TitleContext {
    let renditions = Rendition::of(title, derived).into_iter().map(|rendition| rendition.title).collect();
    let parent = title.derived.filter(|derived| derived.rendition().is_some());
    let parent = parent.and_then(|derived| all.iter().find(|info| info.id == derived.parent));
    let owner = parent.unwrap_or(title).clone();
    let folders = folders_of(&title.source.path, |_| false);
    TitleContext { renditions, pictures, owner, folders, library: None }
}

/// Returns the renditions of a title, for the end of its line.
fn renditions(title: &TitleInfo, derived: &[TitleInfo]) -> String {
    let names: Vec<String> =
        Rendition::of(title, derived).iter().map(|rendition| rendition.name.to_string()).collect();
    if names.is_empty() { String::new() } else { format!("; as {}", names.join(", ")) }
}

/// When a title was watched last, or made, that was made because a viewer asked for it.
fn last_use(volume: &Volume, info: &TitleInfo) -> Option<u64> {
    let at = info.derived.filter(|derived| derived.on_use).and_then(|_| volume.last_use(info.id))?;
    at.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// The same, for the end of its line.
fn made_on_use(volume: &Volume, info: &TitleInfo) -> String {
    let at = last_use(volume, info).map(rfc1123);
    at.map(|at| format!("; made on use, last watched {at}")).unwrap_or_default()
}

/// Prints a table, or the output requested instead.
pub(super) fn run(args: &LsArgs) -> anyhow::Result<ExitCode> {
    if let Some(from) = &args.from {
        return run_library(args, from);
    }
    if args.objects.is_given() {
        return Err(super::usage(anyhow::anyhow!(
            "--endpoint and the like are for --from s3://BUCKET/PREFIX; add that"
        )));
    }
    if let Some(remote) = args.remote.named_or_store(&args.store)? {
        return run_remote(args, &remote);
    }
    let volume = args.store.open_any()?;
    let members = volume.members();
    let lost = |title: &ListedTitle| title.lost(|slot| members.is_usable(slot));
    let (mut titles, damaged) = (volume.listing()?.titles, volume.damaged_titles());
    let all: Vec<TitleInfo> = titles.iter().map(|title| title.info.clone()).collect();
    let derived: Vec<TitleInfo> = all.iter().filter(|info| info.derived.is_some()).cloned().collect();
    let named =
        args.named(titles.iter().map(|title| (title.info.name.clone(), title.info.id.to_string())))?;
    titles.retain(|title| match args.titles.is_empty() {
        true => args.all || title.info.derived.is_none(),
        // A pattern does not include titles made from the titles that match it.
        false => {
            let is_own = args.all || title.info.derived.is_none();
            named.contains(&title.info.name) && (is_own || args.titles.contains(&title.info.name))
        }
    });
    let is_damaged = |title: &ListedTitle| damaged.contains(&title.info.id);
    if args.json {
        let pictures = PictureFiles::of(&volume.present_dir());
        let row = |title: &ListedTitle| {
            let made = pictures.about(title.info.id).map(Arc::new);
            let made = made.map_or(PicturesState::Waiting, PicturesState::Made);
            let context = context(&title.info, &all, &derived, made);
            JsonTitle::new(title.info.clone(), context, StoreState::of(&volume, title, is_damaged(title)))
        };
        super::print_json(&titles.iter().map(row).collect::<anyhow::Result<Vec<_>>>()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(base) = &args.urls {
        let mut out = super::terminal::stdout();
        let base = if base.is_empty() { local_server()? } else { format!("{}/", base.trim_end_matches('/')) };
        for title in titles.iter().filter(|title| lost(title).is_none()) {
            writeln!(out, "{base}{}", title.info.name)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let row = |title: &ListedTitle| {
        let t = &title.info;
        TitleRow::of(t, &format!("{}{}", renditions(t, &derived), made_on_use(&volume, t)))
    };
    table(&titles.iter().map(row).collect::<Vec<_>>())?;
    let mut out = super::terminal::stdout();
    for title in &titles {
        let Some(lost) = lost(title) else { continue };
        let dirs = lost.slots.iter().map(|&slot| members.dir(slot).display().to_string());
        let dirs = dirs.collect::<Vec<_>>().join(", ");
        writeln!(out, "{} cannot be played: {lost}; bring back {dirs}", name(&title.info.name))?;
    }
    for title in titles.iter().filter(|title| is_damaged(title)) {
        writeln!(out, "{} is damaged: run millrace scrub", name(&title.info.name))?;
    }
    Ok(ExitCode::SUCCESS)
}
