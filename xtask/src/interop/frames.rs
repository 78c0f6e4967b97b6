//! Lists of decoded frames, and comparisons of them.

use std::path::Path;

use super::process::ProgramSpec;

/// Output of a decoder for a film.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Frames {
    pub(super) pictures: Vec<String>,
    pub(super) sounds: Vec<String>,
}

impl Frames {
    /// Reads the output of `ffmpeg -f framemd5`: stream, dts, pts, duration, size, checksum. The stream with the
    /// media type video in the header gives the pictures.
    pub(super) fn parse(text: &str) -> Self {
        let header = text.lines().filter_map(|line| line.strip_prefix("#media_type "));
        let videos: Vec<&str> = header.filter_map(|line| line.strip_suffix(": video")).collect();
        let mut frames = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if let [stream, _, _, _, _, sum] = fields[..] {
                let list = if videos.contains(&stream) { &mut frames.pictures } else { &mut frames.sounds };
                list.push(sum.to_owned());
            }
        }
        frames
    }

    /// Decodes a file.
    pub(super) fn of_file(file: &Path, map: &str, log: &Path) -> Result<Self, String> {
        let ended = ProgramSpec::new("ffmpeg")
            .args("-v error -nostdin -i")
            .arg(file)
            .args(&format!("-map {map} -fps_mode passthrough -f framemd5 -"))
            .run(log, 120.0)?;
        ended.ok("ffmpeg, decoding a file")?;
        Ok(Self::parse(&ended.out))
    }
}

/// Where `part` lies in `whole` without a gap.
pub(super) fn position(whole: &[String], part: &[String]) -> Option<usize> {
    let first = whole.iter().position(|sum| Some(sum) == part.first())?;
    whole[first..].starts_with(part).then_some(first)
}

/// Returns where `part` begins in `whole`, if it then goes on in order to the end, with frames
/// missing only among the last `last`: players close a stream more or less cleanly, and with
/// B-frames the decoding order is not the display order, so that the frames that they withhold need
/// not be the very last.
pub(super) fn to_the_end(whole: &[String], part: &[String], last: usize) -> Option<usize> {
    let at = whole.iter().position(|sum| Some(sum) == part.first())?;
    let same = whole[at..].iter().zip(part).take_while(|(a, b)| a == b).count();
    let mut rest = whole[at + same..].iter();
    let in_order = part[same..].iter().all(|sum| rest.any(|other| other == sum));
    (in_order && at + same + last >= whole.len()).then_some(at)
}

/// How two lists differ, in words.
pub(super) fn difference(wanted: &[String], got: &[String]) -> String {
    let known = got.iter().filter(|sum| wanted.contains(sum)).count();
    let first = wanted.iter().zip(got).position(|(a, b)| a != b).unwrap_or(wanted.len().min(got.len()));
    format!(
        "{} of {} frames arrived, {} of them damaged or foreign, first difference at frame {first}",
        got.len(),
        wanted.len(),
        got.len() - known
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    #[test]
    fn frame_lists_are_read_by_stream() {
        let text = "#format: frame checksums\n#media_type 0: video\n#tb 0: 1/25\n#media_type 1: audio\n\
                    0,          0,          0,        1,   345600, aa\n1,  0, 0, 1024, 4096, bb\n0, 1, 1, 1, 9, cc\n";
        assert_eq!(
            Frames::parse(text),
            Frames { pictures: vec!["aa".into(), "cc".into()], sounds: vec!["bb".into()] }
        );
    }

    #[test]
    fn position_finds_only_contiguous_part() {
        let whole = list("abcdef");
        assert_eq!(position(&whole, &list("cde")), Some(2));
        assert_eq!(position(&whole, &whole), Some(0));
        for bad in ["ce", "xa", "efg", ""] {
            assert_eq!(position(&whole, &list(bad)), None, "{bad}");
        }
    }

    #[test]
    fn to_the_end_tolerates_damage_only_at_end() {
        let whole = list("abcdefgh");
        for (good, at) in [("abcdefgh", 0), ("abcdefg", 0), ("abcdefh", 0), ("abcdfgh", 0), ("cdefg", 2)] {
            assert_eq!(to_the_end(&whole, &list(good), 4), Some(at), "{good}");
        }
        for bad in ["abdefgh", "abc", "abcdefgx", "abcdefghi", "abcdhg", "xabcdefgh", ""] {
            assert_eq!(to_the_end(&whole, &list(bad), 4), None, "{bad}");
        }
    }

    #[test]
    fn difference_reports_counts_and_first_position() {
        assert_eq!(
            difference(&list("abcd"), &list("abx")),
            "3 of 4 frames arrived, 1 of them damaged or foreign, first difference at frame 2"
        );
        assert!(difference(&list("abcd"), &list("ab")).ends_with("first difference at frame 2"));
    }
}
