
// --- controls of the player ---

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

function showPlaying() {
  const { paused } = at('video');
  at('pause').textContent = paused ? '▶' : '❚❚';
  at('pause').setAttribute('aria-label', paused ? 'Play' : 'Pause');
}

function showVolume() {
  const { muted, volume } = at('video');
  at('mute').textContent = muted ? 'Unmute' : 'Mute';
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
