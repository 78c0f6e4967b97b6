//! The shortest delay of any scheme.
//!
//! A viewer may arrive at any time and hears everything from then on. The picture at `t` must therefore be sent at least once in
//! every interval of `D + t`, `D` the delay: it costs at least `dt / (D + t)` of the playback rate. Over a film of length `F` that is
//! `ln((D + F) / D)`. A bandwidth of `B` times the playback rate thus allows no delay below `F / (e^B - 1)`
//! (Hu, "Video-on-demand broadcasting protocols: a comprehensive study", INFOCOM 2001; Engebretsen and Sudan, "Harmonic broadcasting
//! is bandwidth-optimal assuming constant bit rate", Networks 47, 2006).

/// The shortest delay of a film when `channels` times its rate are sent, rounded down.
pub fn least_delay_ns(film_ns: u64, channels: u8) -> u64 {
    (film_ns as f64 / f64::from(channels).exp_m1()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_delay_of_two_hours_falls_by_e_with_each_channel() {
        let film = 7_200_000_000_000;
        let seconds: Vec<_> =
            (1..=8).map(|channels| least_delay_ns(film, channels) / 1_000_000_000).collect();
        assert_eq!(seconds, [4190, 1126, 377, 134, 48, 17, 6, 2]);
        assert_eq!(least_delay_ns(0, 3), 0);
    }
}
