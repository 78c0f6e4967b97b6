//! How a client requests FEC, and how the server grants it: the `X-Millrace-FEC` header
//! (docs/ref/rtsp.md).

use std::fmt;
use std::str::FromStr;

use millrace_core::text::excerpt;

use super::CodeShape;
use crate::error::ClientError;

/// What FEC a viewer wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FecChoice {
    /// None.
    #[default]
    Off,
    /// The plain XOR of ST 2022-1.
    Xor,
    /// All parities that there are.
    All,
}

impl FromStr for FecChoice {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        match text.trim() {
            "off" => Ok(Self::Off),
            "xor" => Ok(Self::Xor),
            "all" => Ok(Self::All),
            _ => Err(ClientError::Option { option: "fec", got: text.to_owned(), allowed: "off, xor, all" }),
        }
    }
}

impl fmt::Display for FecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Xor => "xor",
            Self::All => "all",
        })
    }
}

/// The server's grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FecGrant {
    /// Which FEC it sends.
    pub choice: FecChoice,
    /// The reason for a refusal, if the server gives one.
    pub reason: Option<String>,
    /// Port of ours to which it sends the XOR.
    pub xor_port: Option<u16>,
    /// Port of ours to which it sends the further parities.
    pub further_port: Option<u16>,
    /// Shape of the code.
    pub shape: Option<CodeShape>,
}

impl FecGrant {
    /// Reads `choice;name=value;…`. Unknown names are skipped, and meaningless values count as
    /// absent.
    pub fn parse(value: &str) -> Self {
        // The reason comes in quotes and may hold anything.
        let (value, reason) = match value.split_once("reason=\"") {
            Some((before, after)) => (before, after.split('"').next()),
            None => (value, None),
        };
        let mut parts = value.split(';').map(str::trim);
        let choice = parts.next().and_then(|choice| choice.parse().ok()).unwrap_or_default();
        let reason = reason.map(|text| excerpt(text, 100));
        let mut grant = Self { choice, reason, ..Self::default() };
        let (mut k, mut m, mut unit) = (None, None, None);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let number = value.trim().parse::<u16>().ok().filter(|number| *number > 0);
            match name.trim() {
                "xor_port" => grant.xor_port = number,
                "rs_port" => grant.further_port = number,
                "k" => k = number,
                "m" => m = number,
                "U" => unit = number,
                _ => {}
            }
        }
        let shape = k.zip(m).zip(unit).map(|((k, m), unit)| CodeShape {
            data_units: usize::from(k),
            parity_units: usize::from(m),
            unit_packets: usize::from(unit),
        });
        grant.shape = shape.filter(CodeShape::is_sensible);
        grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_are_read() {
        let grant = FecGrant::parse("all;xor_port=5002;rs_port=5006;pt=96;L=20;D=4;k=4;m=2;U=20");
        let shape = CodeShape { data_units: 4, parity_units: 2, unit_packets: 20 };
        assert_eq!((grant.choice, grant.shape), (FecChoice::All, Some(shape)));
        assert_eq!((grant.xor_port, grant.further_port, grant.reason), (Some(5002), Some(5006), None));
        let grant = FecGrant::parse("off;reason=\"a title; without parity=0\"");
        assert_eq!(
            (grant.choice, grant.reason.as_deref()),
            (FecChoice::Off, Some("a title; without parity=0"))
        );
        let grant = FecGrant::parse(" xor ; U = 5 ;k=200;m=1;new=1;xor_port=70000");
        assert_eq!((grant.choice, grant.shape, grant.xor_port), (FecChoice::Xor, None, None));
    }

    #[test]
    fn fec_grant_parse_of_any_text_yields_valid_shape() {
        bolero::check!().with_type::<String>().for_each(|text| {
            let grant = FecGrant::parse(text);
            assert!(grant.shape.is_none_or(|shape| shape.code().is_some()));
        });
    }

    #[test]
    fn choices_parse_and_print() {
        for choice in [FecChoice::Off, FecChoice::Xor, FecChoice::All] {
            assert_eq!(choice.to_string().parse::<FecChoice>().unwrap(), choice);
        }
        assert!("some".parse::<FecChoice>().unwrap_err().to_string().contains("off, xor, all"));
    }
}
