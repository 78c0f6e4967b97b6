//! `nvod://GROUP:PORT`: a cast's options, and those of the plan.

use std::fmt;
use std::str::FromStr;

use millrace_nvod::limits::MAX_CHANNELS;
use millrace_nvod::{Scheme, channel_group};

use crate::cast::url::{CastUrl, CastUrlError};

/// Channels without `channels=`: two hours of the usual scheme begin within half a minute.
const DEFAULT_CHANNELS: u8 = 6;
/// Whether it may be such an address.
const PREFIX: &str = "nvod://";

/// Groups to send to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvodUrl {
    /// As it was written.
    pub text: String,
    /// Channels.
    pub channels: u8,
    /// The scheme.
    pub scheme: Scheme,
    /// The group of the announcements.
    control: CastUrl,
}

/// Why a text is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvodUrlError {
    /// An address or an option of every cast.
    #[error(transparent)]
    Cast(#[from] CastUrlError),
    /// The groups.
    #[error(
        "\"{0}\": write nvod://GROUP:PORT, GROUP a multicast group with as many groups behind it as there are channels"
    )]
    Groups(String),
    /// An option of the plan.
    #[error(
        "option \"{0}\": write channels=1 to {MAX_CHANNELS}, scheme=staggered, skyscraper, skyscraper-2, -5, -12, -25, pagoda or fixed-delay"
    )]
    Plan(String),
}

impl NvodUrl {
    /// Whether a text is meant as one.
    pub fn is_meant(text: &str) -> bool {
        text.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
    }

    /// The destination of the announcements.
    pub fn control(&self) -> &CastUrl {
        &self.control
    }

    /// The destination of a channel.
    pub fn channel(&self, channel: u8) -> Option<CastUrl> {
        let to = channel_group(self.control.to, channel)?;
        Some(CastUrl { to, ..self.control.clone() })
    }
}

impl FromStr for NvodUrl {
    type Err = NvodUrlError;

    fn from_str(text: &str) -> Result<Self, NvodUrlError> {
        let groups = || NvodUrlError::Groups(text.to_owned());
        let rest = Some(text).filter(|text| Self::is_meant(text)).ok_or_else(groups)?;
        let (address, options) = rest[PREFIX.len()..].split_once('?').unwrap_or((&rest[PREFIX.len()..], ""));
        let (mut channels, mut scheme, mut others) = (DEFAULT_CHANNELS, Scheme::FixedDelay, Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let wrong = || NvodUrlError::Plan(option.to_owned());
            match option.split_once('=') {
                Some(("channels", value)) => {
                    let count = value.parse::<u8>().ok().filter(|count| (1..=MAX_CHANNELS).contains(count));
                    channels = count.ok_or_else(wrong)?;
                }
                Some(("scheme", value)) => scheme = value.parse().map_err(|_| wrong())?,
                // Packets are those of the title.
                Some(("pkt_size", _)) => return Err(wrong()),
                _ => others.push(option),
            }
        }
        let control = format!("udp://{address}?{}", others.join("&")).parse::<CastUrl>();
        let mut control = control.map_err(|error| match error {
            CastUrlError::Form(_) => groups(),
            other => other.into(),
        })?;
        text.clone_into(&mut control.text);
        let url = Self { text: text.to_owned(), channels, scheme, control };
        url.channel(channels - 1).ok_or_else(groups)?;
        Ok(url)
    }
}

impl fmt::Display for NvodUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvod_url_keeps_options_of_plan_and_cast() {
        let url: NvodUrl =
            "nvod://239.1.1.1:5000?channels=3&ttl=4&scheme=skyscraper-12&iface=eth1".parse().unwrap();
        assert_eq!((url.channels, url.scheme), (3, Scheme::Skyscraper { width: 12 }));
        assert_eq!((url.control().ttl, url.control().interface.as_deref()), (Some(4), Some("eth1")));
        let last = url.channel(2).unwrap();
        assert_eq!((last.to, last.ttl), ("239.1.1.4:5000".parse().unwrap(), Some(4)));
        let plain: NvodUrl = "NVOD://[ff15::1]:5000".parse().unwrap();
        assert_eq!((plain.channels, plain.scheme), (6, Scheme::FixedDelay));
    }

    #[test]
    fn nvod_url_that_cannot_be_sent_to_is_refused() {
        for (text, part) in [
            ("udp://239.1.1.1:5000", "write nvod://"),
            ("nvod://127.0.0.1:5000", "a multicast group"),
            ("nvod://239.255.255.253:5000?channels=16", "behind it"),
            ("nvod://239.1.1.1", "nvod://GROUP:PORT"),
            ("nvod://239.1.1.1:5000?channels=0", "channels=1 to 16"),
            ("nvod://239.1.1.1:5000?scheme=harmonic", "fixed-delay"),
            ("nvod://239.1.1.1:5000?pkt_size=188", "pkt_size=188"),
            ("nvod://239.1.1.1:5000?ttl=0", "ttl=1 to 255"),
        ] {
            let error = text.parse::<NvodUrl>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
