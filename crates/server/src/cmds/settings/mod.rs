//! The settings of `serve`, in one table: each is declared once, as an option of [`super::serve::ServeArgs`], and
//! the declaration yields its name in the configuration file, its environment variable,
//! `millrace config` and `docs/ref/config.md`.
//!
//! | layer, the first one with a value holds | |
//! | --- | --- |
//! | command line | `--max-rate 900Mb/s` |
//! | environment | `MILLRACE_MAX_RATE=900Mb/s` |
//! | file of `--config` | `max-rate = "900Mb/s"` |
//! | default | |
//!
//! | file | holds |
//! | --- | --- |
//! | `setting` | the table |
//! | `ranges` | the allowed values where the type alone does not determine them |
//! | `file` | reading the configuration file |
//! | `layers` | putting the layers together |

pub(crate) mod file;
mod layers;
mod ranges;
mod setting;

pub(crate) use self::layers::{Faults, Layered, Origin, Origins, Parsed, Values, layered, of_file, parse};
pub(crate) use self::setting::{Setting, SettingKind, TakesEffect, command, table};
