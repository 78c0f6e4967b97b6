//! What viewers do while they watch.

use std::str::FromStr;

use crate::error::ClientError;

/// What viewers do while they watch. The default is to watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Behaviour;

impl FromStr for Behaviour {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let got = format!("\"{}\"", text.chars().take(60).collect::<String>());
        if text.trim() == "watch" {
            Ok(Self)
        } else {
            Err(ClientError::Option { option: "behaviour", got, allowed: "watch" })
        }
    }
}
