
// --- pictures ---

// The poster of a title, or a drawn one of the same size, with its own colour and the first letters
// of its name.
function posterOf(title) {
  const frame = element('span');
  frame.className = 'poster';
  if (title.poster) {
    const image = element('img');
    image.alt = '';
    image.loading = 'lazy';
    image.src = address(title.poster);
    frame.append(image);
    return frame;
  }
  const hue = [...title.name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 360, 7);
  frame.style.background = 'linear-gradient(135deg, hsl(' + hue + ' 45% 32%), hsl(' + (hue + 50) % 360 + ' 45% 20%))';
  const letters = element('span', title.title.split(/[^\p{L}\p{N}]+/u).filter(Boolean).slice(0, 2).map((word) => [...word][0]).join('').toUpperCase());
  letters.setAttribute('aria-hidden', 'true');
  frame.append(letters);
  return frame;
}

// The title that can be sought in, with the list of its small pictures and the sheet, as soon as these have come.
let seeking = { title: null, cues: [], sheet: null };

// Lines of WebVTT: until when which part of the sheet stands for the title.
function cuesOf(text) {
  const time = (t) => t.split(':').reduce((all, part) => 60 * all + Number(part), 0);
  return text.split('\n\n').slice(1).map((cue) => {
    const [times, place] = cue.split('\n');
    const [sheet, part] = place.split('#xywh=');
    return { to: time(times.split(' --> ')[1]), sheet, part: part.split(',').map(Number) };
  });
}

async function showSeeking(title) {
  seeking = { title, cues: [], sheet: null };
  at('thumb').hidden = true;
  showChapters(title);
  if (!title) return;
  at('seek').min = 0;
  at('seek').max = title.duration_s;
  showPlace(0);
  if (!title.sprites) return;
  try {
    const list = address(title.sprites);
    const answer = await fetch(list);
    if (!answer.ok) return;
    const cues = cuesOf(await answer.text());
    const sheet = new Image();
    sheet.src = new URL(cues[0].sheet, list).href;
    await sheet.decode();
    if (seeking.title === title) Object.assign(seeking, { cues, sheet });
  } catch {
    // Then there are none: seeking works without.
  }
}

// Where the film is, or would be.
function showPlace(time) {
  at('seek').value = time;
  const { title } = seeking;
  const isLive = playing.title && playing.title.isLive;
  const place = isLive ? behind(time) : seconds(time);
  at('seek-time').textContent = isLive ? place : title ? place + ' / ' + seconds(title.duration_s) : '';
  at('seek').setAttribute('aria-valuetext', place);
}

// The newest place of a live title that plays without a pause.
function edge() {
  const { seekable } = at('video');
  const end = seekable.length ? seekable.end(seekable.length - 1) : 0;
  return playing.hls && playing.hls.liveSyncPosition || end;
}

const NEAR_S = 10;
const behind = (time) => (edge() - time < NEAR_S ? 'Live' : '−' + seconds(edge() - time));

// A live title can be rewound as far as the server has it; the bar is shown where that is worth it.
function showRewind() {
  const { seekable, currentTime } = at('video');
  if (!playing.title || !playing.title.isLive) return;
  const start = seekable.length ? seekable.start(0) : 0;
  for (const id of ['of-seek', 'seek-time']) at(id).hidden = edge() - start < 2 * NEAR_S;
  at('to-edge').hidden = edge() - currentTime < NEAR_S;
  at('seek').min = start;
  at('seek').max = edge();
}

at('to-edge').addEventListener('click', () => {
  at('video').currentTime = edge();
  at('video').play().catch(() => {});
});

function showThumb(time) {
  const { cues, sheet } = seeking;
  const cue = cues.find(({ to }) => time < to) || cues[cues.length - 1];
  const canvas = at('thumb');
  canvas.hidden = !cue;
  if (!cue) return;
  canvas.getContext('2d').drawImage(sheet, ...cue.part, 0, 0, canvas.width, canvas.height);
  const { clientWidth } = at('seek');
  const left = clientWidth * time / Number(at('seek').max) - canvas.width / 2;
  canvas.style.left = Math.max(0, Math.min(clientWidth - canvas.width, left)) + 'px';
}

// Where it is pointed at.
function pointedAt(event) {
  const { left, width } = at('seek').getBoundingClientRect();
  const [min, max] = [Number(at('seek').min), Number(at('seek').max)];
  return min + Math.max(0, Math.min(1, (event.clientX - left) / width)) * (max - min);
}

// A bar that is being moved shows where it leads, and does not follow the film meanwhile.
let isMoved = false;
at('seek').addEventListener('pointermove', (event) => showThumb(pointedAt(event)));
at('seek').addEventListener('pointerleave', () => { at('thumb').hidden = true; });
at('seek').addEventListener('input', () => {
  isMoved = true;
  const time = Number(at('seek').value);
  showPlace(time);
  showThumb(time);
});
at('seek').addEventListener('change', () => {
  isMoved = false;
  at('video').currentTime = Number(at('seek').value);
});
at('seek').addEventListener('blur', () => { at('thumb').hidden = true; });
// By keys a step is five seconds, as in the player itself.
at('seek').addEventListener('keydown', (event) => {
  const step = { ArrowLeft: -5, ArrowRight: 5, ArrowDown: -5, ArrowUp: 5, PageDown: -60, PageUp: 60 }[event.key];
  if (!step) return;
  event.preventDefault();
  showRewind();
  const time = Math.max(Number(at('seek').min), Math.min(Number(at('seek').max), Number(at('seek').value) + step));
  showPlace(time);
  showThumb(time);
  at('video').currentTime = time;
});
at('video').addEventListener('timeupdate', () => {
  showRewind();
  if (!isMoved) showPlace(at('video').currentTime);
});
