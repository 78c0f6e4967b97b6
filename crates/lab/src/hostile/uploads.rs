//! Uploads: as fast as the server takes them, and more than its disk has room for.

use std::io::Write;
use std::sync::Arc;

use anyhow::ensure;

use super::client::{AttackTarget, Response, sends};

/// Bytes that are written at once.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes after which a full disk must have been noticed.
const MOST_BYTES: u64 = 4 << 30;

/// Who brings what.
#[derive(Clone, Debug)]
pub struct Bringer {
    /// The transport stream.
    pub bytes: Arc<[u8]>,
    /// `Authorization` of a user who manages.
    pub authorization: String,
}

/// One round of a client that uploads a file, and its name.
type Round = fn(&Bringer, &AttackTarget) -> anyhow::Result<u64>;

/// Both.
pub const UPLOADS: [(&str, Round); 2] =
    [("uploads at full speed", Bringer::whole), ("uploads to a full disk", Bringer::too_much)];

impl Bringer {
    /// A name that no other address brings.
    fn name(target: &AttackTarget) -> String {
        format!("from-{}", target.from.to_string().replace(':', "-"))
    }

    fn head(&self, method: &str, path: &str, lines: &str) -> String {
        let authorization = &self.authorization;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: tv\r\nAuthorization: {authorization}\r\n{lines}Connection: close\r\n\r\n"
        )
    }

    /// Brings all of it, and has the title removed.
    fn whole(&self, target: &AttackTarget) -> anyhow::Result<u64> {
        let name = Self::name(target);
        let mut client = target.dial()?;
        let length = format!("Content-Length: {}\r\n", self.bytes.len());
        client.write_all(self.head("PUT", &format!("/titles/{name}"), &length).as_bytes())?;
        for piece in self.bytes.chunks(PIECE_BYTES) {
            if !sends(&mut client, piece)? {
                break;
            }
        }
        let Some(response) = Response::read(&mut client)? else { return Ok(1) };
        // Full when a title that was removed a moment ago is still being watched, or others bring as much.
        ensure!(matches!(response.status, 201 | 409 | 503 | 507), "an upload: {}", response.head);
        let mut client = target.dial()?;
        client.write_all(self.head("DELETE", &format!("/api/v1/titles/{name}"), "").as_bytes())?;
        Response::read(&mut client)?;
        Ok(2)
    }

    /// Uploads it again and again in one upload without a length, until the server reports that its
    /// disk is full.
    fn too_much(&self, target: &AttackTarget) -> anyhow::Result<u64> {
        let path = format!("/titles/{}", Self::name(target));
        let mut client = target.dial()?;
        client.write_all(self.head("PUT", &path, "Transfer-Encoding: chunked\r\n").as_bytes())?;
        let mut sent = 0;
        'all: while sent < MOST_BYTES {
            for piece in self.bytes.chunks(PIECE_BYTES) {
                let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
                if !sends(&mut client, &chunk)? {
                    break 'all;
                }
                sent += piece.len() as u64;
            }
        }
        ensure!(sent < MOST_BYTES, "{sent} bytes were taken by a full disk");
        let Some(response) = Response::read(&mut client)? else { return Ok(1) };
        ensure!(matches!(response.status, 409 | 422 | 503 | 507), "a full disk: {}", response.head);
        Ok(1)
    }
}
