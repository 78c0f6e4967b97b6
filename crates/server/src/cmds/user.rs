//! `millrace user`: users, their rights, tokens and signed links.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use millrace_core::units::{BitRate, Count, HumanDuration};
use millrace_rights::{
    Copies, Cost, FileError, Limits, ListedUser, NewUser, Now, RightsFile, SignedLink, check_pattern,
};
use millrace_store::volume::Volume;
use serde_json::json;

use super::{StoreArgs, password, serve};
use crate::date::rfc1123;
use crate::limits::MAX_LINK_TIME;

/// Add and remove users, set their rights, create tokens and signed links
///
/// Without users, any client that reaches the server may watch, and only programs on its own
/// machine may change anything. With users, `serve --watching users` lets users watch the titles
/// granted to them, by RTSP and HTTP. A running server follows changes within a second or two.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace user add anna --grant '*'          may watch everything\n  \
                        millrace user group kids 'cartoon-*' zoo     a group of titles\n  millrace user grant ben @kids\n  \
                        millrace user limit ben --streams 2\n  \
                        millrace user token anna --expires 720h      for a program\n  \
                        millrace user sign zoo --for 2h              a link for whoever has it\n\n\
                        Passwords are typed, or piped in:  pass show tv | millrace user add anna")]
pub(super) struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Subcommand)]
enum UserCommand {
    Add(AddArgs),
    Passwd(PasswdArgs),
    Rm(RmArgs),
    Ls(LsArgs),
    /// Let a user watch titles, or manage
    Grant(GrantArgs),
    /// Take rights of a user away
    Revoke(GrantArgs),
    Limit(LimitArgs),
    Group(GroupArgs),
    Token(TokenArgs),
    Sign(SignArgs),
}

/// Where users are kept.
#[derive(Args)]
struct FileArgs {
    /// File with users and their rights [default: rights.sqlite in the store's directory, a copy on every member]
    #[arg(long, value_name = "FILE", env = "MILLRACE_RIGHTS")]
    rights: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

impl FileArgs {
    /// Copies of the rights file: `--rights`, or one on every present member, so that no single
    /// member is indispensable.
    fn copies(&self) -> anyhow::Result<Copies> {
        if let Some(path) = &self.rights {
            return Ok(Copies::one(path));
        }
        let copies = serve::rights::on_members(Arc::new(self.store.find_members()?));
        Ok(copies.reporting(|error| eprintln!("millrace: {error}")))
    }

    fn open(&self) -> anyhow::Result<RightsFile> {
        Ok(RightsFile::open_copies(&self.copies()?)?)
    }

    /// Opens or creates the rights file. Creates the store as well, unless its directory exists:
    /// that may be the mount point of a disk that is not mounted.
    fn open_or_create(&self) -> anyhow::Result<RightsFile> {
        let dir = self.store.dir()?;
        if self.rights.is_none() && self.store.members()?.is_empty() && !dir.exists() {
            Volume::open_or_create(&dir)?;
            eprintln!("millrace: created a new store of plain files in {}", dir.display());
        }
        Ok(RightsFile::open_or_create_copies(&self.copies()?)?)
    }
}

/// Add a user; its password is typed or piped in
#[derive(Args)]
struct AddArgs {
    /// Name
    #[arg(value_name = "NAME")]
    name: String,
    /// Titles that it may watch: a pattern with * and ?, or a group (@NAME); repeat it for each
    #[arg(long = "grant", value_name = "PATTERN|@GROUP")]
    grants: Vec<String>,
    /// It may also change things and see who else watches, from everywhere
    #[arg(long)]
    manage: bool,
    /// It may also add titles by HTTP, from everywhere
    #[arg(long)]
    upload: bool,
    /// Do not store the data for RTSP Digest: a thief of the file could sign in with them. Players
    /// then send the password in clear text
    #[arg(long)]
    no_digest: bool,
    #[command(flatten)]
    file: FileArgs,
}

/// Change the password of a user
#[derive(Args)]
struct PasswdArgs {
    /// Name
    #[arg(value_name = "NAME")]
    name: String,
    /// Keep what RTSP Digest needs, or do not [default: as before]
    #[arg(long, value_name = "WHETHER")]
    digest: Option<bool>,
    #[command(flatten)]
    file: FileArgs,
}

/// Remove users with their grants and tokens
#[derive(Args)]
struct RmArgs {
    /// Names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    file: FileArgs,
}

/// List users, groups and tokens
#[derive(Args)]
struct LsArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: FileArgs,
}

#[derive(Args)]
struct GrantArgs {
    /// Name
    #[arg(value_name = "NAME")]
    name: String,
    /// A pattern of titles with * and ?, or a group (@NAME)
    #[arg(value_name = "PATTERN|@GROUP", required_unless_present_any = ["manage", "upload"])]
    what: Vec<String>,
    /// To change things and to see who else watches, from everywhere
    #[arg(long)]
    manage: bool,
    /// To add titles by HTTP, from everywhere; whoever manages may too
    #[arg(long)]
    upload: bool,
    #[command(flatten)]
    file: FileArgs,
}

/// Set a user's limits on simultaneous use; omitted limits become the same as for other viewers
#[derive(Args)]
struct LimitArgs {
    /// Name
    #[arg(value_name = "NAME")]
    name: String,
    /// Streams that play at once, by RTSP and HTTP together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    streams: Option<u32>,
    /// Highest total of the mean bit rates of these
    #[arg(long, value_name = "RATE")]
    rate: Option<BitRate>,
    #[command(flatten)]
    file: FileArgs,
}

/// Make a group of titles, or change it; without patterns it is removed
#[derive(Args)]
struct GroupArgs {
    /// Name, without @
    #[arg(value_name = "NAME")]
    name: String,
    /// Patterns of titles with * and ?: all that the group is from now on
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    #[command(flatten)]
    file: FileArgs,
}

/// Make a token, which stands for the user's password by HTTP; it is printed once
#[derive(Args)]
struct TokenArgs {
    /// Name of the user
    #[arg(value_name = "NAME")]
    name: String,
    /// It expires after this time [default: never]
    #[arg(long, value_name = "TIME")]
    expires: Option<HumanDuration>,
    /// Remove this token instead; millrace user ls shows the names
    #[arg(long, value_name = "TOKEN", conflicts_with = "expires")]
    remove: Option<String>,
    #[command(flatten)]
    file: FileArgs,
}

/// Print addresses of a title that are valid for a limited time, for any client that has them
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace user sign zoo --for 2h --base rtsp://tv.example:8554/\n  \
                        millrace user sign zoo --for 30m --base https://tv.example/\n  millrace user sign --renew-key")]
struct SignArgs {
    /// The title; titles made from it (renditions) are covered as well
    #[arg(value_name = "TITLE", required_unless_present = "renew_key")]
    title: Option<String>,
    /// How long the address is valid
    #[arg(long = "for", value_name = "TIME", required_unless_present = "renew_key")]
    time: Option<HumanDuration>,
    /// Address of the server: rtsp://HOST:PORT/ or http://HOST:PORT/ [default: print only the part
    /// after these, for both]
    #[arg(long, value_name = "URL")]
    base: Option<String>,
    /// Invalidate all links signed before
    #[arg(long, conflicts_with_all = ["title", "time", "base"])]
    renew_key: bool,
    #[command(flatten)]
    file: FileArgs,
}

/// A name or a pattern that is none is the command line's mistake.
pub(super) fn run(args: &UserArgs) -> anyhow::Result<ExitCode> {
    carry_out(args).map_err(|error| match error.downcast_ref() {
        Some(FileError::Name { .. }) => super::usage(error),
        _ => error,
    })
}

fn carry_out(args: &UserArgs) -> anyhow::Result<ExitCode> {
    let now = Now::read().unix_s;
    match &args.command {
        UserCommand::Add(args) => add(args, now)?,
        UserCommand::Passwd(args) => passwd(args)?,
        UserCommand::Rm(args) => {
            let mut file = args.file.open()?;
            args.names.iter().try_for_each(|name| file.remove_user(name))?;
        }
        UserCommand::Ls(args) => ls(args, now)?,
        UserCommand::Grant(args) => change_rights(args, true)?,
        UserCommand::Revoke(args) => change_rights(args, false)?,
        UserCommand::Limit(args) => {
            let limits = Limits { streams: args.streams, bits_per_s: args.rate.map(|rate| rate.0) };
            args.file.open()?.set_limits(&args.name, limits)?;
        }
        UserCommand::Group(args) => args.file.open_or_create()?.set_group(&args.name, &args.patterns)?,
        UserCommand::Token(args) => token(args, now)?,
        UserCommand::Sign(args) => sign(args, now)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn change_rights(args: &GrantArgs, grants: bool) -> anyhow::Result<()> {
    let (mut file, name) = (args.file.open()?, &args.name);
    if args.manage {
        file.set_manages(name, grants)?;
    }
    if args.upload {
        file.set_uploads(name, grants)?;
    }
    for what in &args.what {
        if grants { file.grant(name, what)? } else { file.revoke(name, what)? }
    }
    Ok(())
}

fn add(args: &AddArgs, now: u64) -> anyhow::Result<()> {
    let name = &args.name;
    millrace_rights::check_name(name).map_err(|error| FileError::Name { what: name.clone(), error })?;
    let mut file = args.file.open_or_create()?;
    let password = password::new_password(name)?;
    let user = NewUser {
        name,
        password: &password,
        digest: !args.no_digest,
        manages: args.manage,
        cost: Cost::default(),
    };
    file.add_user(&user, now)?;
    if args.upload {
        file.set_uploads(name, true)?;
    }
    args.grants.iter().try_for_each(|grant| file.grant(name, grant))?;
    if args.grants.is_empty() && !args.manage && !args.upload {
        eprintln!("millrace: {name} may watch nothing yet; everything: millrace user grant {name} '*'");
    }
    Ok(())
}

fn passwd(args: &PasswdArgs) -> anyhow::Result<()> {
    let mut file = args.file.open()?;
    let had_digest = file.has_digest(&args.name)?;
    let password = password::new_password(&args.name)?;
    file.set_password(&NewUser {
        name: &args.name,
        password: &password,
        digest: args.digest.unwrap_or(had_digest),
        manages: false,
        cost: Cost::default(),
    })?;
    Ok(())
}

fn token(args: &TokenArgs, now: u64) -> anyhow::Result<()> {
    let mut file = args.file.open()?;
    if let Some(id) = &args.remove {
        return Ok(file.remove_token(&args.name, id)?);
    }
    let expires = args.expires.map(|time| now.saturating_add(time.0.as_secs()));
    let (listed, token) = file.add_token(&args.name, now, expires)?;
    eprintln!("millrace: token {} of {}; it is not shown again", listed.id, args.name);
    println!("{token}");
    Ok(())
}

fn sign(args: &SignArgs, now: u64) -> anyhow::Result<()> {
    let mut file = args.file.open_or_create()?;
    let (Some(title), Some(time)) = (&args.title, args.time) else {
        return Ok(file.renew_links()?);
    };
    let is_title = check_pattern(title).is_ok() && !title.contains(['*', '?']);
    if !is_title {
        return Err(super::usage(anyhow!("{title}: no title can be called that; see: millrace ls")));
    }
    let time = time.0;
    if time < Duration::from_secs(1) || time > MAX_LINK_TIME {
        let (got, most) = (HumanDuration(time), HumanDuration(MAX_LINK_TIME));
        return Err(super::usage(anyhow!("--for: got {got}, allowed: 1s to {most}")));
    }
    check_title(&args.file, title)?;
    let known = file.read()?;
    let Some(keys) = &known.keys else { anyhow::bail!("rights: the file has no keys") };
    let link = SignedLink::sign(&keys.links, title, now.saturating_add(time.as_secs()));
    let (rtsp, http) =
        (format!("/{title}?{}", link.query()), format!("/titles/{title}/index.m3u8?{}", link.query()));
    match args.base.as_deref().map(|base| base.trim_end_matches('/')) {
        None => println!("{rtsp}\n{http}"),
        Some(base) if base.starts_with("rtsp://") || base.starts_with("rtsps://") => println!("{base}{rtsp}"),
        Some(base) if base.starts_with("http://") || base.starts_with("https://") => println!("{base}{http}"),
        Some(base) => {
            let wrong = anyhow!("--base: got \"{base}\"; write rtsp://HOST:PORT/ or http://HOST:PORT/");
            return Err(super::usage(wrong));
        }
    }
    Ok(())
}

/// Refuses a title that the store does not have, because its name is probably mistyped. With
/// --rights alone, this machine need not have a store.
fn check_title(args: &FileArgs, title: &str) -> anyhow::Result<()> {
    if args.rights.is_some() && !args.store.is_named() {
        return Ok(());
    }
    let found = args.store.open_any()?.find(title)?;
    if found.is_none_or(|found| found.name != title) {
        anyhow::bail!("{title}: there is no such title in the store; see: millrace ls");
    }
    Ok(())
}

fn ls(args: &LsArgs, now: u64) -> anyhow::Result<()> {
    let (users, groups) = args.file.open()?.list()?;
    if args.json {
        let users: Vec<_> = users.iter().map(as_json).collect();
        let group =
            |group: &millrace_rights::ListedGroup| json!({ "name": group.name, "patterns": group.patterns });
        let groups: Vec<_> = groups.iter().map(group).collect();
        return super::print_json(&json!({ "users": users, "groups": groups }));
    }
    for user in &users {
        println!("{}  {}", user.name, rights(user));
        for token in &user.tokens {
            let ends = match token.expires_unix_s {
                None => String::new(),
                Some(expires) if expires <= now => ", expired".to_owned(),
                Some(expires) => format!(", until {}", rfc1123(expires)),
            };
            println!("  token {}, made {}{ends}", token.id, rfc1123(token.made_unix_s));
        }
    }
    for group in &groups {
        println!("@{}  {}", group.name, group.patterns.join(", "));
    }
    Ok(())
}

/// Returns a user's rights, in words.
fn rights(user: &ListedUser) -> String {
    let watches = match user.grants.is_empty() {
        true => "watches nothing".to_owned(),
        false => format!("watches {}", user.grants.join(", ")),
    };
    let manages = if user.manages { ", manages" } else { "" };
    let uploads = if user.uploads { ", uploads" } else { "" };
    let digest = if user.digest { "" } else { ", without digest" };
    let Limits { streams, bits_per_s } = user.limits;
    let streams = streams.map_or(String::new(), |n| format!(", at most {}", Count(n.into(), "stream")));
    let rate = bits_per_s.map_or(String::new(), |rate| format!(", at most {}", BitRate(rate)));
    let tokens = match user.tokens.len() {
        0 => String::new(),
        count => format!(", {}", Count(count as u64, "token")),
    };
    format!("{watches}{manages}{uploads}{digest}{streams}{rate}{tokens}")
}

fn as_json(user: &ListedUser) -> serde_json::Value {
    let token = |token: &millrace_rights::ListedToken| json!({ "token": token.id, "made_unix_s": token.made_unix_s, "expires_unix_s": token.expires_unix_s });
    json!({
        "name": user.name,
        "manages": user.manages,
        "uploads": user.uploads,
        "digest": user.digest,
        "grants": user.grants,
        "tokens": user.tokens.iter().map(token).collect::<Vec<_>>(),
        "max_streams": user.limits.streams,
        "max_bits_per_s": user.limits.bits_per_s,
        "added_unix_s": user.added_unix_s,
    })
}
