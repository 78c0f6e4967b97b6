//! The main thread while the server runs: it reports problems to the operator as they come up.

use millrace_store::cache::Cache;
use millrace_store::transform::Transforms;

use super::inject::Injector;
use super::members::{DamageWatch, HealthWatch, MembersWatch};
use super::transforms::TransformsWatch;
use super::watchdog::Watchdog;
use crate::library::open_titles::OpenTitles;
use crate::limits::control::SIGNAL_LOOK_EVERY;

/// Goes on until it is over.
pub(super) fn watch(
    mut is_over: impl FnMut() -> bool,
    cache: &Cache,
    titles: &OpenTitles,
    members: &MembersWatch,
    transforms: &Transforms,
    injector: &mut Injector,
    mut watchdog: Option<Watchdog>,
) {
    let (mut health, mut damage) = (HealthWatch::default(), DamageWatch::default());
    let mut said = TransformsWatch::default();
    while !is_over() {
        if let Some(watchdog) = &mut watchdog {
            watchdog.look();
        }
        std::thread::sleep(SIGNAL_LOOK_EVERY);
        injector.look();
        health.look(cache);
        tell_of_damage(cache, titles);
        said.look(transforms, titles);
        damage.look(cache, members);
    }
}

/// Reports the parts of titles that could not be read since the last call.
fn tell_of_damage(cache: &Cache, titles: &OpenTitles) {
    while let Some(damage) = cache.damage() {
        tracing::warn!("{}", damage.summary(titles.name_of(damage.id).as_deref()));
    }
    if let Some(trouble) = cache.trouble() {
        tracing::warn!("{trouble}");
    }
}
