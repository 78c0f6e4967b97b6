//! Renditions as titles of a volume: found with their title, offered best first, removed with it.

use millrace_core::units::BitRate;
use millrace_store::StoreError;
use millrace_store::check::{Depth, check_store};
use millrace_store::volume::{Derived, FinishTitle, TitleInfo, Volume};
use millrace_testkit::titles::Film;

/// A title that has this name among its renditions.
fn best(volume: &Volume, name: &str, rendition: &str) -> TitleInfo {
    let film = Film::new(300, 1);
    let finish = FinishTitle { rendition: Some(rendition.parse().unwrap()), ..film.finish(name) };
    film.write(volume, &[1316]).unwrap().commit(finish).unwrap()
}

/// Adds a title without pictures that declares itself a rendition.
fn derive(volume: &Volume, of: &TitleInfo, name: &str, rate: u64) -> Result<TitleInfo, StoreError> {
    let film = Film::new(300, 3);
    let derived = Some(Derived::as_rendition(of.id, name.parse().unwrap()));
    let finish = FinishTitle { derived, mean_rate: BitRate(rate), ..film.finish("") };
    film.write(volume, &[1316])?.commit(finish)
}

fn offers(volume: &Volume, of: &TitleInfo) -> Vec<(String, String, u64)> {
    let offers = volume.renditions_of(of.id).unwrap();
    offers.into_iter().map(|offer| (offer.name.to_string(), offer.title, offer.mean_rate.0)).collect()
}

#[test]
fn renditions_are_offered_best_first_and_go_with_their_title() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let title = best(&volume, "film", "1080p");
    let other = best(&volume, "film-2", "1080p");
    assert_eq!(offers(&volume, &title), [], "one alone is no choice");
    derive(&volume, &title, "480p", 1_200_000).unwrap();
    derive(&volume, &title, "720p", 3_000_000).unwrap();
    let kept = derive(&volume, &other, "720p", 3_000_000).unwrap();
    let film = Film::new(300, 4);
    let speed = Some(Derived::at_speed(title.id, "4".parse().unwrap()));
    film.write(&volume, &[1316]).unwrap().commit(FinishTitle { derived: speed, ..film.finish("") }).unwrap();
    let offer = |name: &str, title: &str, rate| (name.to_owned(), title.to_owned(), rate);
    let expected = [
        offer("1080p", "film", 13_600_000),
        offer("720p", "film@720p", 3_000_000),
        offer("480p", "film@480p", 1_200_000),
    ];
    assert_eq!(offers(&volume, &title), expected);
    assert_eq!(check_store(dir.path(), Depth::Full, &mut |_| {}).unwrap(), []);
    drop(volume);
    let volume = Volume::open(dir.path()).unwrap();
    assert_eq!(offers(&volume, &title), expected, "also after the catalogue was read again");
    assert_eq!(volume.speeds_of(title.id).unwrap().len(), 1, "a rendition is no speed");
    volume.remove(title.id).unwrap();
    let names: Vec<String> = volume.titles().unwrap().into_iter().map(|title| title.name).collect();
    assert_eq!(names, ["film-2", "film-2@720p"]);
    assert_eq!(volume.find("film-2@720p").unwrap(), Some(kept));
}

#[test]
fn derive_rendition_with_invalid_name_or_parent_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let refused = |of: &TitleInfo, name: &str, why: &str| {
        let error = derive(&volume, of, name, 1).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(&Film::new(300, 1).add(&volume, "plain"), "720p", "plain has no name among its renditions");
    let title = best(&volume, "film", "1080p");
    refused(&title, "1080p", "film is called 1080p itself");
    let made = derive(&volume, &title, "720p", 1).unwrap();
    refused(&title, "720p", "film@720p is already there");
    refused(&made, "480p", "film@720p is a derived title itself");
}
