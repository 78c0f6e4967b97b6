//! `/qr.svg?text=TEXT`: an address as a QR code (ISO/IEC 18004), for phones. The server draws it,
//! because the page asks no other host for anything.

use std::fmt::Write;

use qrcode::{Color, EcLevel, QrCode};

use crate::answer::Answer;
use crate::limits::MAX_QR_TEXT_BYTES;
use crate::request::Request;
use crate::route;

/// Light modules around the code, which readers need (ISO/IEC 18004 section 6.3.8).
const QUIET: usize = 4;

pub(crate) fn answer(request: &Request) -> Answer {
    let mut parameters = request.query.as_deref().unwrap_or_default().trim_start_matches('?').split('&');
    let text = parameters.find_map(|pair| pair.strip_prefix("text=")).and_then(route::decoded);
    let Some(text) = text.filter(|text| (1..=MAX_QR_TEXT_BYTES).contains(&text.len())) else {
        let what = format!(
            "no QR code: the text is missing or too long; send ?text= with up to {MAX_QR_TEXT_BYTES} bytes"
        );
        return Answer::error(400, &what);
    };
    match QrCode::with_error_correction_level(text.as_bytes(), EcLevel::M) {
        Ok(code) => Answer::new(200, "image/svg+xml", svg(code.width(), &code.to_colors()))
            .with("Cache-Control", "no-cache"),
        Err(error) => Answer::error(400, &format!("no QR code: {error}; shorten the text")),
    }
}

/// A drawing with a unit for each module; dark modules side by side are one rectangle.
fn svg(width: usize, modules: &[Color]) -> String {
    let side = width + 2 * QUIET;
    let mut path = String::new();
    for (row, modules) in modules.chunks(width).enumerate() {
        let mut column = 0;
        for run in modules.chunk_by(|a, b| a == b) {
            if run[0] == Color::Dark {
                // Writing to a string does not fail.
                let _ = write!(path, "M{} {}h{}v1h-{2}z", column + QUIET, row + QUIET, run.len());
            }
            column += run.len();
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {side} {side}\" shape-rendering=\"crispEdges\">\
         <path fill=\"#fff\" d=\"M0 0h{side}v{side}H0z\"/><path d=\"{path}\"/></svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_draws_runs_of_dark_modules_inside_quiet_zone() {
        let (dark, light) = (Color::Dark, Color::Light);
        let drawn = svg(3, &[dark, dark, light, light, light, light, light, light, dark]);
        assert!(drawn.contains("viewBox=\"0 0 11 11\""), "{drawn}");
        assert!(drawn.contains("d=\"M4 4h2v1h-2zM6 6h1v1h-1z\""), "{drawn}");
    }

    #[test]
    fn longest_text_fits_into_code() {
        let text = "\u{e9}".repeat(MAX_QR_TEXT_BYTES / 2);
        assert!(QrCode::with_error_correction_level(text.as_bytes(), EcLevel::M).is_ok());
    }
}
