//! What `publish`, `fetch` and `ls` need of an object store: its address, how it is reached, titles by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use millrace_objects::{
    AccessOptions, Addressing, LibraryListing, LibraryUrl, ObjectError, ObjectLibrary, TransferProgress,
};
use millrace_store::format::manifest::Manifest;

use super::progress::bar;
use super::title_names::fits;

/// How an object store is reached.
#[derive(Args, Clone, Debug)]
pub(super) struct ObjectArgs {
    /// Address of the object store, for stores other than AWS: https://HOST:PORT or http://HOST:PORT [default:
    /// $AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Region of the bucket [default: $AWS_REGION, or us-east-1]
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    /// Where requests name the bucket: in the path (https://HOST/BUCKET/) or in the host name
    /// (https://BUCKET.HOST/) [default: path with --endpoint, host without]
    #[arg(long, value_name = "WHERE")]
    addressing: Option<BucketIn>,
    /// PEM file with the certificates of authorities to trust for the object store, or with its own
    /// [default: the system's]
    #[arg(long, value_name = "FILE")]
    endpoint_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BucketIn {
    Path,
    Host,
}

impl ObjectArgs {
    /// Whether the command line has any of them.
    pub(super) fn is_given(&self) -> bool {
        self.endpoint.is_some()
            || self.region.is_some()
            || self.addressing.is_some()
            || self.endpoint_ca.is_some()
    }

    /// Certificates of authorities to trust.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.endpoint_ca.as_deref()
    }

    /// Opens a library.
    pub(super) fn open(&self, url: &LibraryUrl, cancel: &Arc<AtomicBool>) -> anyhow::Result<ObjectLibrary> {
        if self.is_given() && matches!(url, LibraryUrl::Directory(_)) {
            return Err(super::usage(anyhow!(
                "--endpoint, --region, --addressing and --endpoint-ca are for s3:// URLs; omit them with file://"
            )));
        }
        if let Some(endpoint) = self.endpoint.as_ref().filter(|endpoint| !is_endpoint(endpoint)) {
            return Err(super::usage(anyhow!(ObjectError::Endpoint { endpoint: endpoint.clone() })));
        }
        let addressing = match self.addressing {
            None => Addressing::Usual,
            Some(BucketIn::Path) => Addressing::Path,
            Some(BucketIn::Host) => Addressing::Host,
        };
        let options = AccessOptions {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            addressing,
            ca: self.endpoint_ca.clone(),
            ..AccessOptions::default()
        };
        Ok(ObjectLibrary::open(url, &options, cancel)?)
    }
}

fn is_endpoint(text: &str) -> bool {
    url::Url::parse(text).is_ok_and(|url| {
        let is_bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        matches!(url.scheme(), "http" | "https") && url.has_host() && is_bare
    })
}

/// Reads the address of a library. Not by clap, which repeats a value that it refuses: it may hold a password.
pub(super) fn library_url(option: &str, text: &str) -> anyhow::Result<LibraryUrl> {
    text.parse().map_err(|error: String| super::usage(anyhow!("{option}: {error}")))
}

/// The titles of a library that are named, without those derived from others: those come along. All, if there are no names.
pub(super) fn named<'a>(listing: &'a LibraryListing, names: &[String]) -> anyhow::Result<Vec<&'a Manifest>> {
    let own = || listing.titles.iter().filter(|manifest| manifest.title.derived.is_none());
    if names.is_empty() {
        return Ok(own().collect());
    }
    let mut found: Vec<&Manifest> = Vec::new();
    for wanted in names {
        let fit: Vec<&Manifest> =
            own().filter(|m| fits(wanted, &m.title.name, &m.title.id.to_string())).collect();
        let is_ambiguous = fit.len() > 1 && fit.iter().all(|manifest| manifest.title.name == *wanted);
        if fit.is_empty() {
            anyhow::bail!("{wanted}: no such title in the library; see: millrace ls --from URL");
        }
        if is_ambiguous {
            let ids: Vec<String> = fit.iter().map(|manifest| manifest.title.id.to_string()).collect();
            anyhow::bail!(
                "{wanted}: several titles of the library have this name; give an id: {}",
                ids.join(", ")
            );
        }
        for manifest in fit {
            if !found.iter().any(|other| other.title.id == manifest.title.id) {
                found.push(manifest);
            }
        }
    }
    Ok(found)
}

/// Reports titles whose manifests cannot be used.
pub(super) fn warn_unreadable(listing: &LibraryListing) {
    for (id, error) in &listing.unreadable {
        eprintln!("millrace: title {id}: {error}");
    }
}

/// Whether the same error awaits every other title.
pub(super) fn ends_all(error: &ObjectError) -> bool {
    !matches!(
        error,
        ObjectError::Wrong { .. }
            | ObjectError::Missing { .. }
            | ObjectError::Damaged { .. }
            | ObjectError::TooLong { .. }
            | ObjectError::Store(_)
    )
}

/// A progress bar for a transfer.
pub(super) struct TransferBar(ProgressBar);

impl TransferBar {
    pub(super) fn new(action: &str, name: &str, quiet: bool) -> Self {
        let bar = bar("{msg} [{bar:30}] {percent:>3} %  {binary_bytes_per_sec}  {eta} left", quiet);
        bar.set_message(format!("{action} {}", super::terminal::name(name)));
        Self(bar)
    }

    pub(super) fn show(&self, progress: TransferProgress) {
        self.0.set_length(progress.bytes_total.max(1));
        self.0.set_position(progress.bytes_done);
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
