
// --- controls of the player ---

// Outlines of the icons, in a square of 24.
const SPEAKER = 'M3 9h4l5-5v16l-5-5H3z';
const ICONS = {
  Play: 'M7 4l13 8-13 8z',
  Pause: 'M6 4h4v16H6zM14 4h4v16h-4z',
  Mute: SPEAKER + 'M15 8.5a4.5 4.5 0 0 1 0 7zM15 5a8 8 0 0 1 0 14v-2a6 6 0 0 0 0-10z',
  Unmute: SPEAKER + 'M15 9.4L16.4 8l2.1 2.1L20.6 8 22 9.4l-2.1 2.1 2.1 2.1-1.4 1.4-2.1-2.1-2.1 2.1-1.4-1.4 2.1-2.1z',
  'Theatre view': 'M2 6h20v12H2zm2 2v8h16V8z',
  'Leave theatre view': 'M6 8h12v8H6zm2 2v4h8v-4zM2 6h2v12H2zM20 6h2v12h-2z',
  'Full screen': 'M4 4h6v2H6v4H4zM14 4h6v6h-2V6h-4zM4 14h2v4h4v2H4zM18 14h2v6h-6v-2h4z',
  'Exit full screen': 'M8 4h2v6H4V8h4zM14 4h2v4h4v2h-6zM4 14h6v6H8v-4H4zM14 14h6v2h-4v4h-2z',
};

function showIcon(id, name) {
  at(id).querySelector('path').setAttribute('d', ICONS[name]);
  at(id).setAttribute('aria-label', name);
  at(id).title = name;
}

function playOrPause() {
  const video = at('video');
  if (video.paused || video.ended) video.play().catch(() => {});
  else video.pause();
}

function wholeScreen() {
  const [video, stage] = [at('video'), at('stage')];
  if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
  else if (stage.requestFullscreen) stage.requestFullscreen().catch(() => {});
  // iPhones can show only the video itself in full screen.
  else if (video.webkitEnterFullscreen) video.webkitEnterFullscreen();
}

// As wide as the window: kept until the browser forgets the visit.
const THEATRE = 'millrace-theatre';
function showTheatre(isOn) {
  at('player').classList.toggle('theatre', isOn);
  showIcon('theatre', isOn ? 'Leave theatre view' : 'Theatre view');
}

function switchTheatre() {
  const isOn = !at('player').classList.contains('theatre');
  showTheatre(isOn);
  // The list is at another place now.
  soon();
  at('stage').scrollIntoView({ block: 'nearest' });
  try {
    sessionStorage.setItem(THEATRE, isOn ? '1' : '');
  } catch {
    // Without session storage it lasts until the page is left.
  }
}

function wasTheatre() {
  try {
    return sessionStorage.getItem(THEATRE) === '1';
  } catch {
    return false;
  }
}

const showPlaying = () => showIcon('pause', at('video').paused ? 'Play' : 'Pause');
const showWhole = () => showIcon('whole', document.fullscreenElement ? 'Exit full screen' : 'Full screen');

function showVolume() {
  const { muted, volume } = at('video');
  showIcon('mute', muted ? 'Unmute' : 'Mute');
  at('volume').value = muted ? 0 : volume;
}

at('pause').addEventListener('click', playOrPause);
at('video').addEventListener('click', playOrPause);
at('video').addEventListener('dblclick', wholeScreen);
at('video').tabIndex = 0;
for (const event of ['play', 'pause', 'ended', 'emptied']) at('video').addEventListener(event, showPlaying);
at('video').addEventListener('volumechange', showVolume);
at('mute').addEventListener('click', () => { at('video').muted = !at('video').muted; });
at('volume').addEventListener('input', () => {
  at('video').muted = false;
  at('video').volume = Number(at('volume').value);
});
at('theatre').addEventListener('click', switchTheatre);
at('whole').addEventListener('click', wholeScreen);

// In full screen the controls disappear while the pointer does not move.
const RESTS_MS = 3000;
let resting = null;
function stir() {
  at('stage').classList.remove('resting');
  clearTimeout(resting);
  resting = setTimeout(() => {
    if (document.fullscreenElement && !at('video').paused) at('stage').classList.add('resting');
  }, RESTS_MS);
}
for (const event of ['pointermove', 'keydown', 'focusin']) at('stage').addEventListener(event, stir);
document.addEventListener('fullscreenchange', stir);
document.addEventListener('fullscreenchange', showWhole);
showPlaying();
showVolume();
showWhole();
showTheatre(wasTheatre());
