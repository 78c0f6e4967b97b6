//! How an object store is reached: endpoint, region, credentials. Credentials come from the environment, from the files of the AWS programs or from
//! the machine's role, and are in no setting, log or error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::error::{ObjectError, Remote};
use crate::http::Connector;
use crate::library_url::LibraryUrl;
use crate::limits::{BODY_TIME, MAX_PROFILE_BYTES, MAX_RETRIES, RETRY_FIRST, RETRY_LONGEST, RETRY_TIME};
use crate::profile::{ProfileValues, parse_profile};

/// Where requests say which bucket they mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// In the path at an endpoint that was given, in the host name at AWS.
    #[default]
    Usual,
    /// `https://HOST/BUCKET/`
    Path,
    /// `https://BUCKET.HOST/`
    Host,
}

/// Variables with credentials and settings: those of the process, or others.
#[derive(Clone, Default)]
pub struct Environment(Option<BTreeMap<String, String>>);

impl Environment {
    /// These, and not those of the process.
    pub fn of<K: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (K, V)>) -> Self {
        Self(Some(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let value = match &self.0 {
            Some(variables) => variables.get(name).cloned(),
            None => std::env::var(name).ok(),
        };
        value.filter(|value| !value.is_empty())
    }

    fn all(&self) -> Vec<(String, String)> {
        match &self.0 {
            Some(variables) => variables.clone().into_iter().collect(),
            None => std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
        }
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Environment")
    }
}

/// How to reach an object store.
#[derive(Clone, Debug)]
pub struct AccessOptions {
    /// Where credentials come from.
    pub environment: Environment,
    /// Address of the server, for servers other than AWS; `None`: the environment's.
    pub endpoint: Option<String>,
    /// Region; `None`: the environment's, or us-east-1.
    pub region: Option<String>,
    /// Where requests say which bucket they mean.
    pub addressing: Addressing,
    /// Authorities to trust for https:// instead of the system's.
    pub ca: Option<PathBuf>,
    /// How long failed requests are repeated.
    pub retry_time: Duration,
    /// Time within which the next bytes of a body must come.
    pub body_time: Duration,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self {
            environment: Environment::default(),
            endpoint: None,
            region: None,
            addressing: Addressing::default(),
            ca: None,
            retry_time: RETRY_TIME,
            body_time: BODY_TIME,
        }
    }
}

/// An object store, and as what else it can be used.
pub(crate) struct Objects {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// For uploads that continue after an interruption.
    pub(crate) s3: Option<Arc<AmazonS3>>,
    pub(crate) remote: Remote,
}

/// Opens the object store of a library.
///
/// # Errors
/// If there is no such directory, or the settings cannot be used.
pub(crate) fn open(url: &LibraryUrl, options: &AccessOptions) -> Result<Objects, ObjectError> {
    match url {
        LibraryUrl::S3 { bucket, .. } => open_s3(url, bucket, options),
        LibraryUrl::Directory(dir) => {
            let remote = Remote { library: url.to_string(), endpoint: dir.display().to_string() };
            if !dir.is_dir() {
                return Err(ObjectError::NoDirectory { dir: dir.clone() });
            }
            let store = LocalFileSystem::new_with_prefix(dir).map_err(|e| remote.error(&e))?;
            // If a manifest survives a power cut, the files that it lists must survive too.
            Ok(Objects { store: Arc::new(store.with_fsync(true)), s3: None, remote })
        }
    }
}

fn open_s3(url: &LibraryUrl, bucket: &str, options: &AccessOptions) -> Result<Objects, ObjectError> {
    let environment = |name: &str| options.environment.get(name);
    let profile = profile(&environment);
    let endpoint = options
        .endpoint
        .clone()
        .or_else(|| environment("AWS_ENDPOINT_URL_S3"))
        .or_else(|| environment("AWS_ENDPOINT_URL"))
        .or(profile.endpoint.clone());
    let region = options
        .region
        .clone()
        .or_else(|| environment("AWS_REGION"))
        .or_else(|| environment("AWS_DEFAULT_REGION"))
        .or(profile.region.clone())
        .unwrap_or_else(|| "us-east-1".to_owned());
    let in_host = match options.addressing {
        Addressing::Usual => endpoint.is_none() && !bucket.contains('.'),
        Addressing::Path => false,
        Addressing::Host => true,
    };
    let shown = endpoint.clone().unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
    let remote = Remote { library: url.to_string(), endpoint: shown };
    let connector = Connector::new(options.ca.as_deref(), options.body_time)?;
    let backoff = BackoffConfig { init_backoff: RETRY_FIRST, max_backoff: RETRY_LONGEST, base: 2.0 };
    let retry = RetryConfig { backoff, max_retries: MAX_RETRIES, retry_timeout: options.retry_time };
    let mut builder = AmazonS3Builder::new();
    for (name, value) in options.environment.all() {
        // The endpoint is set below: one of the command line counts before the environment's.
        let key = name.starts_with("AWS_") && !name.starts_with("AWS_ENDPOINT");
        if let Some(key) = key.then(|| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>().ok()).flatten()
        {
            builder = builder.with_config(key, value);
        }
    }
    // The profile is for those who have set no key in the environment.
    if environment("AWS_ACCESS_KEY_ID").is_none()
        && let (Some(key_id), Some(secret)) = (profile.key_id, profile.secret)
    {
        builder = builder.with_access_key_id(key_id).with_secret_access_key(secret);
        if let Some(token) = profile.token {
            builder = builder.with_token(token);
        }
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(if in_host { with_bucket(&endpoint, bucket)? } else { endpoint });
    }
    let store = builder
        .with_bucket_name(bucket)
        .with_region(region)
        .with_virtual_hosted_style_request(in_host)
        .with_allow_http(true)
        .with_retry(retry)
        .with_http_connector(connector)
        .build()
        .map_err(|error| remote.error(&error))?;
    let store = Arc::new(store);
    Ok(Objects { store: Arc::clone(&store) as _, s3: Some(store), remote })
}

/// An endpoint with the bucket before its host name.
fn with_bucket(endpoint: &str, bucket: &str) -> Result<String, ObjectError> {
    match endpoint.split_once("://") {
        Some((scheme, host)) => Ok(format!("{scheme}://{bucket}.{host}")),
        None => Err(ObjectError::Endpoint { endpoint: endpoint.to_owned() }),
    }
}

/// The profile that the environment names, or the default one, from both files.
fn profile(environment: &dyn Fn(&str) -> Option<String>) -> ProfileValues {
    let name = environment("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let home = environment("HOME").map(PathBuf::from);
    let file = |variable: &str, usual: &str| {
        let named = environment(variable).map(PathBuf::from);
        named.or_else(|| home.as_ref().map(|home| home.join(usual)))
    };
    let read = |path: Option<PathBuf>| {
        path.and_then(|path| read_text(&path)).map(|text| parse_profile(&text, &name)).unwrap_or_default()
    };
    let settings = read(file("AWS_CONFIG_FILE", ".aws/config"));
    let keys = read(file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"));
    // A key and its secret belong together, so both come from one file.
    let (key_id, secret, token) = match keys.key_id.is_some() {
        true => (keys.key_id, keys.secret, keys.token),
        false => (settings.key_id, settings.secret, settings.token),
    };
    ProfileValues {
        key_id,
        secret,
        token,
        region: settings.region.or(keys.region),
        endpoint: settings.endpoint.or(keys.endpoint),
    }
}

/// The content of a file; `None` if it is not there or cannot be read.
fn read_text(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(MAX_PROFILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}
