//! `--sandbox`: after its start the server may do no more than its settings need. The rules are made of the settings here, and put on by
//! [`millrace_make::confine`], while the process has a single thread.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use millrace_make::confine::{Enforcement, FileRules, ProcessRules, explain};
use millrace_make::ingest::Sandbox;
use millrace_objects::LibraryUrl;
use millrace_store::blocking::{Timeout, send_to};
use millrace_tls::SYSTEM_FILES;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use super::user::FOR_XDP;
use super::{ReadChoice, SandboxChoice, ServeArgs};
use crate::cast::{CastItem, ItemList};
use crate::cmds::objects::library_url;
use crate::cmds::{NewStoreArgs, egress, is_no_store};
use crate::limits::control::MAX_PATH_LINKS;

/// Capabilities that are kept where the server has them: files of other users, leases on them (whether a film is being written), large
/// socket buffers, low ports of live sources, locked memory.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::LEASE)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK);

/// Those that ffmpeg gets too: it opens the film again.
const INHERITED: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);

/// The user, group and others of a new store: as the store makes its directories.
const STORE_MODE: u32 = 0o750;

/// Device of TUN interfaces.
const TUN: &str = "/dev/net/tun";

/// Files of the resolver, which may be links.
const RESOLVER_FILES: [&str; 4] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf"];

/// Directories of files for many purposes. A rule for one file there is for the file alone.
const SHARED_DIRS: [&str; 12] =
    ["/", "/etc", "/home", "/root", "/tmp", "/var/tmp", "/usr", "/var", "/var/lib", "/run", "/dev", "/proc"];

/// Confines the process, and all threads and programs that it starts from now on.
///
/// # Errors
/// If that is required, and this kernel cannot.
pub(super) fn confine(args: &ServeArgs) -> anyhow::Result<()> {
    if args.own_sandbox == SandboxChoice::Off {
        return Ok(());
    }
    let rules = rules(args);
    if let Err(error) = reduce_capabilities(rules.uses_xdp) {
        tracing::warn!(
            "sandbox: capabilities cannot be given up: {error}; allow capset (SystemCallFilter= of a unit)"
        );
    }
    let confined = rules.confine();
    let shortcoming = match confined {
        Ok(enforcement) => shortcoming(enforcement),
        Err(error) => Some(format!("it cannot be made ({error}), and nothing is restricted completely")),
    };
    match shortcoming {
        None => tracing::info!(
            "sandbox: the server reaches the store, the folders and the files of its settings, and starts ffmpeg alone"
        ),
        Some(what) if args.own_sandbox == SandboxChoice::Require => {
            anyhow::bail!(
                "--sandbox require: {what}; use Linux 6.12 or newer with Landlock, or --sandbox auto"
            )
        }
        Some(what) => tracing::warn!("sandbox: {what}"),
    }
    for file in replaced_alone(args) {
        tracing::info!(
            "sandbox: the directory of {} is closed because it has files for many purposes: restart the server after that file was replaced",
            file.display()
        );
    }
    Ok(())
}

/// An error of the start, with the remedy if it may come from the rules.
pub(super) fn explain_error(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    let explained = explain(text.clone());
    if explained == text { error } else { anyhow::Error::msg(explained) }
}

/// Settings and certificates that are read again while the server runs, where only the file of now is admitted.
fn replaced_alone(args: &ServeArgs) -> impl Iterator<Item = &Path> {
    let files = args.config.as_deref().into_iter().chain(args.tls.files());
    files.filter(|file| way_to(file).iter().any(|dir| is_shared(dir) && dir != Path::new("/etc")))
}

/// The rules that are not enforced, in words.
fn shortcoming(Enforcement { files, has_call_filter }: Enforcement) -> Option<String> {
    let calls = match has_call_filter {
        true => "system calls are restricted",
        false => "this kernel has no filter of system calls (CONFIG_SECCOMP_FILTER) either",
    };
    let files = match files {
        FileRules::Complete if has_call_filter => return None,
        FileRules::Complete => "files are restricted",
        FileRules::Partial => {
            "this kernel knows only a part of the rules for files, programs, ports and signals (all: Linux 6.12)"
        }
        FileRules::Missing => {
            "this kernel has no Landlock, or it is switched off (lsm=landlock,... at boot): files are not restricted"
        }
        FileRules::Unwanted => {
            "with --ffmpeg-sandbox off, ffmpeg may need any file: files are not restricted"
        }
    };
    Some(format!("{files}; {calls}"))
}

/// Gives up the capabilities that only the start needed, and those that nothing needs.
fn reduce_capabilities(uses_xdp: bool) -> std::io::Result<()> {
    let kept = if uses_xdp { KEPT.union(FOR_XDP) } else { KEPT };
    set_no_new_privs(true)?;
    let now = capabilities(None)?;
    let permitted = now.permitted.intersection(kept);
    let inheritable = now.inheritable.intersection(INHERITED);
    let less = CapabilitySets { effective: now.effective.intersection(kept), permitted, inheritable };
    // A service manager may have forbidden the call where there is nothing to give up.
    if less != now {
        set_capabilities(None, less)?;
    }
    Ok(())
}

fn rules(args: &ServeArgs) -> ProcessRules {
    let has_engine = args.tcp.is_engine();
    let uses_xdp = has_engine || !args.egress.xdp_interfaces.is_empty();
    let notify = std::env::var_os("NOTIFY_SOCKET");
    ProcessRules {
        reads: reads(args),
        writes: writes(args, uses_xdp),
        devices: has_engine.then(|| TUN.into()).into_iter().collect(),
        ffmpeg: (args.ffmpeg.sandbox() != Sandbox::Off).then(|| args.ffmpeg.program.clone()),
        // Ports that the kernel must not give away meanwhile.
        binds_tcp: has_engine,
        has_abstract_sockets: notify.is_some_and(|name| name.as_encoded_bytes().starts_with(b"@")),
        uses_xdp,
        uses_io_uring: args.read != ReadChoice::Threads,
    }
}

fn reads(args: &ServeArgs) -> Vec<PathBuf> {
    let mut reads: Vec<_> = args.absolute_folders().iter().flat_map(|folder| read_places(folder)).collect();
    if args.follow_symlinks {
        reads.push("/".into());
    }
    let files = [&args.config, &args.inject].into_iter().flatten().map(PathBuf::as_path);
    let files = files.chain(args.tls.files()).chain(args.rights.authority()).chain(args.library.authority());
    reads.extend(files.flat_map(around));
    reads.extend(args.transforms.iter().flat_map(|text| modules(text)).flat_map(around));
    reads.extend(std::env::var_os("SSL_CERT_FILE").iter().flat_map(|file| around(Path::new(file))));
    reads.extend(RESOLVER_FILES.iter().chain(&SYSTEM_FILES).flat_map(|file| around(Path::new(file))));
    for list in args.channels.iter().flat_map(|channel| channel.programme.lists()) {
        if let ItemList::Playlist(path) = list {
            reads.extend(around(path));
        }
        // Faults of a playlist are reported when it is played.
        let items = list.items().unwrap_or_default();
        reads.extend(items.iter().filter_map(file_of).flat_map(|file| around(&file)));
    }
    match args.library.library.as_ref().map(|url| library_url("--library", url)) {
        Some(Ok(LibraryUrl::Directory(dir))) => reads.extend(read_places(&dir)),
        Some(_) => reads.extend(aws_files()),
        None => {}
    }
    reads
}

fn writes(args: &ServeArgs, uses_xdp: bool) -> Vec<PathBuf> {
    let mut writes = member_dirs(&args.store);
    // These files are replaced as a whole, which is a change of their directory.
    let files = [args.rights.file(), args.stats.as_deref(), args.tcp.tcp_socket.as_deref()];
    for file in files.into_iter().flatten() {
        writes.extend(way_to(file).into_iter().filter(|dir| !is_shared(dir)).chain(parent(file)));
    }
    if uses_xdp && let Some(dir) = egress::figures_dir() {
        // Without it the measurement is made again at the next start.
        let _ = fs::create_dir_all(&dir);
        writes.push(dir);
    }
    writes
}

/// The directories of the volume, wherever it records its members. A disk that comes back, and one that takes the place of another, is a
/// new directory: where there are several members, the directories above them count too.
fn member_dirs(store: &NewStoreArgs) -> Vec<PathBuf> {
    let named = match store.old.members.is_empty() {
        true => store.dir().into_iter().collect(),
        false => store.old.members.clone(),
    };
    if named.iter().all(|dir| is_no_store(dir)) {
        // A rule needs a directory. If it cannot be made, neither can the store, which reports it.
        for dir in &named {
            let _ = fs::DirBuilder::new().recursive(true).mode(STORE_MODE).create(dir);
        }
        return named;
    }
    let found = store.old.find_members().map(|members| members.report()).unwrap_or_default();
    let is_volume = found.len().max(named.len()) > 1;
    let mut dirs: Vec<_> = found.into_iter().map(|slot| slot.dir).chain(named).collect();
    if !is_volume {
        // A part of a store in one directory may be a link to another disk.
        let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let links = entries.map(|entry| entry.path()).filter(|path| path.is_symlink() && path.is_dir());
        let targets: Vec<_> = links.filter_map(|link| link.canonicalize().ok()).collect();
        dirs.extend(targets);
        return dirs;
    }
    dirs.sort();
    dirs.dedup();
    dirs.iter().flat_map(|dir| places_of(dir)).filter(|dir| !is_shared(dir)).collect()
}

/// A member of several, and where its disk may come back. A disk that hangs must not be asked for anything by this thread.
fn places_of(dir: &Path) -> Vec<PathBuf> {
    let look = |dir: &Path| dir.is_dir().then(|| above_mount(dir));
    let found = send_to(dir, Timeout::Call, look);
    if let Ok(Some(above)) = found {
        return [Some(dir.to_path_buf()), parent(dir), above].into_iter().flatten().collect();
    }
    let is_there = |dir: &&Path| send_to(dir, Timeout::Call, |dir| dir.is_dir()).unwrap_or(false);
    let Some(there) = dir.ancestors().skip(1).find(is_there) else { return Vec::new() };
    // It may be a mount point on which nothing is mounted.
    let above = found.is_ok().then(|| parent(there)).flatten();
    above.into_iter().chain([there.to_path_buf()]).collect()
}

/// A directory that is read, and where another may take its place: a disk that is mounted again or later, a new target of a link. The one
/// above it stays.
fn read_places(dir: &Path) -> Vec<PathBuf> {
    let places = if dir.is_dir() { way_to(dir) } else { places_of(dir) };
    let places = places.into_iter().filter(|place| !is_shared(place));
    places.chain(above_mount(dir)).chain([dir.to_path_buf()]).collect()
}

/// The directories in which a path leads on: of each link in it, and of the file at its end.
fn way_to(path: &Path) -> Vec<PathBuf> {
    let Ok(mut path) = std::path::absolute(path) else { return Vec::new() };
    let mut dirs = Vec::new();
    for _ in 0..MAX_PATH_LINKS {
        let link =
            path.ancestors().filter_map(|part| Some((part.to_path_buf(), fs::read_link(part).ok()?))).last();
        let Some((link, target)) = link else { break };
        let Some(dir) = link.parent() else { break };
        let rest = path.strip_prefix(&link).unwrap_or(Path::new(""));
        let next = dir.join(target);
        dirs.push(dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf()));
        path = if rest.as_os_str().is_empty() { next } else { next.join(rest) };
    }
    dirs.extend(path.canonicalize().unwrap_or(path).parent().map(Path::to_path_buf));
    dirs
}

/// The directory above the mount point that a directory is below, unless it has files of many purposes.
fn above_mount(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    let device = |path: &Path| path.metadata().ok().map(|meta| meta.dev());
    let own = device(&dir)?;
    let above = dir.ancestors().find(|above| device(above) != Some(own))?;
    (!is_shared(above)).then(|| above.to_path_buf())
}

/// Whether a directory has files of many purposes.
fn is_shared(dir: &Path) -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let is_home = home.as_deref() == Some(dir) || dir.parent() == Some(Path::new("/home"));
    is_home || SHARED_DIRS.iter().any(|shared| dir == Path::new(shared))
}

fn parent(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.parent().map(Path::to_path_buf)
}

/// A file, and the directories in which another of its name may take its place.
fn around(file: &Path) -> Vec<PathBuf> {
    // A pipe is read once.
    if fs::metadata(file).is_ok_and(|meta| !meta.is_file()) {
        return Vec::new();
    }
    way_to(file).into_iter().filter(|dir| !is_shared(dir)).chain([file.to_path_buf()]).collect()
}

/// The modules of a transformation (`NAME=STEP+STEP`).
fn modules(text: &str) -> impl Iterator<Item = &Path> {
    let steps = text.split_once('=').map_or("", |(_, steps)| steps).split('+');
    steps.filter_map(|step| step.trim().strip_prefix("wasm:")).map(Path::new)
}

/// The file of an entry that is no title.
fn file_of(item: &CastItem) -> Option<PathBuf> {
    Some(item.folder.join(&item.address)).filter(|path| path.is_file())
}

/// Files in which the programs of AWS keep credentials.
fn aws_files() -> Vec<PathBuf> {
    const VARIABLES: [&str; 4] = [
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    ];
    let named = VARIABLES.iter().filter_map(std::env::var_os);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".aws"));
    named.flat_map(|file| around(Path::new(&file))).chain(home).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_admitted_with_the_directory_in_which_it_may_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for name in ["live", "archive"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let (link, file) = (dir.join("live/cert.pem"), dir.join("archive/cert1.pem"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(around(&link), [dir.join("live"), dir.join("archive"), link]);
        // A link on the way is replaced too.
        std::os::unix::fs::symlink("archive", dir.join("current")).unwrap();
        let there = dir.join("current/cert1.pem");
        assert_eq!(around(&there), [dir.clone(), dir.join("archive"), there]);
        // A directory of many purposes is not.
        assert_eq!(around(Path::new("/etc/hostname.none")), [Path::new("/etc/hostname.none")]);
        assert_eq!(around(Path::new("/dev/null")), Vec::<PathBuf>::new());
    }

    #[test]
    fn member_that_is_missing_is_admitted_where_its_disk_may_be_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (mount, there) = (dir.join("mnt/a"), dir.join("b/store"));
        for made in [&mount, &there] {
            fs::create_dir_all(made).unwrap();
        }
        assert_eq!(places_of(&mount.join("store")), [dir.join("mnt"), mount]);
        let places = places_of(&there);
        assert_eq!(places[..2], [there.clone(), dir.join("b")]);
        assert_eq!(places_of(Path::new("/none/store")), [Path::new("/")]);
    }

    #[test]
    fn folder_is_admitted_where_another_may_take_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (films, link) = (dir.join("disks/a/films"), dir.join("links/films"));
        for made in [&films, &dir.join("links")] {
            fs::create_dir_all(made).unwrap();
        }
        std::os::unix::fs::symlink(&films, &link).unwrap();
        let has = |dir: &Path, place: &Path| read_places(dir).iter().any(|found| found == place);
        assert!(has(&films, &films) && has(&films, &dir.join("disks/a")));
        assert!(has(&link, &dir.join("links")) && has(&link, &dir.join("disks/a")));
        assert!(has(&dir.join("later/films"), &dir), "it may be made");
        assert!(!has(Path::new("/usr/share"), Path::new("/usr")));
    }

    #[test]
    fn modules_are_found_in_transformations() {
        let found = |text| modules(text).map(Path::to_path_buf).collect::<Vec<_>>();
        assert_eq!(
            found("a=restamp:offset=1s+wasm:/m/a.wasm + wasm:b.wasm"),
            ["/m/a.wasm", "b.wasm"].map(PathBuf::from)
        );
        assert_eq!(found("a=select:audio=deu"), Vec::<PathBuf>::new());
    }

    #[test]
    fn shortcoming_names_what_is_not_enforced() {
        let of = |files, has_call_filter| shortcoming(Enforcement { files, has_call_filter });
        assert_eq!(of(FileRules::Complete, true), None);
        let missing = of(FileRules::Missing, true).unwrap();
        assert!(
            missing.contains("no Landlock") && missing.ends_with("system calls are restricted"),
            "{missing}"
        );
        assert!(of(FileRules::Complete, false).unwrap().contains("CONFIG_SECCOMP_FILTER"));
        assert!(of(FileRules::Unwanted, true).unwrap().contains("--ffmpeg-sandbox off"));
    }

    #[test]
    fn directory_of_many_purposes_is_above_no_mount() {
        assert_eq!(above_mount(Path::new("/")), None);
        // A mount below the root.
        assert_eq!(above_mount(Path::new("/proc/self")), None);
        assert_eq!(above_mount(Path::new("/no/such/directory")), None);
    }
}
