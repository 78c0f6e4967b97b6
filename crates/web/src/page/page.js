'use strict';
// The player and the helpers of the page. Everything from the server is inserted into the page as
// text.

const at = (id) => document.getElementById(id);
const address = (path) => new URL(path.replace(/^[/]/, ''), document.baseURI.split('#')[0]).href;
const HLS_TYPE = 'application/vnd.apple.mpegurl';
const SPEEDS = [0.5, 0.75, 1, 1.25, 1.5, 2];

const isHere = ['localhost', '127.0.0.1', '[::1]'].includes(location.hostname);

let titles = [];
// The RTSP port of the server, and whether this visitor may rename and delete titles.
let rtspPort = null;
let mayManage = false;
let mayUpload = false;
// What plays: the title, hls.js if it does, and when it last went on after a failure of the decoder.
const NOTHING = { title: null, hls: null, recoveredAt: -Infinity };
let playing = { ...NOTHING };

// --- words ---

function seconds(total) {
  const whole = Math.round(total);
  const two = (n) => String(n).padStart(2, '0');
  const h = Math.floor(whole / 3600);
  return (h ? h + ':' + two(Math.floor(whole / 60) % 60) : String(Math.floor(whole / 60))) + ':' + two(whole % 60);
}

const megabits = (rate) => (rate / 1e6).toFixed(1) + ' Mb/s';

function format(title) {
  const codecs = [...new Set(title.streams.map((stream) => stream.codec))].join(', ');
  return [title.is_recording && 'Being recorded', megabits(title.mean_bits_per_s), codecs].filter(Boolean).join(' · ');
}

const about = (title) => (title.isLive ? ['Live', title.message, megabits(title.mean_bits_per_s)] : [seconds(title.duration_s), title.folder, format(title), coming(title)]).filter(Boolean).join(' · ');

// --- elements ---

function element(kind, text) {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Fills a list to choose from; it is not shown if there is nothing to choose.
function choices(id, options, chosen) {
  at(id).replaceChildren(...options.map(([value, text]) => {
    const option = element('option', text);
    option.value = String(value);
    option.selected = value === chosen;
    return option;
  }));
  at('of-' + id).hidden = options.length < 2;
}

function line(label, text, hasCode) {
  const copy = element('button', 'Copy');
  copy.type = 'button';
  copy.setAttribute('aria-label', 'Copy: ' + label);
  copy.addEventListener('click', () => {
    // Browsers allow it on secure pages only: elsewhere the text is selected, ready to be copied.
    const select = () => getSelection().selectAllChildren(code);
    if (navigator.clipboard) {
      navigator.clipboard.writeText(text).then(() => { copy.textContent = 'Copied'; }, select);
    } else {
      select();
    }
  });
  const code = element('code', text);
  code.tabIndex = 0;
  const value = element('dd');
  value.append(code, copy);
  if (hasCode) value.append(...codeOf(label, text));
  return [element('dt', label), value];
}

// A button that shows the text as a QR code, for phones. The server draws it.
function codeOf(label, text) {
  const show = element('button', 'QR code');
  show.type = 'button';
  show.setAttribute('aria-label', 'QR code: ' + label);
  show.setAttribute('aria-expanded', 'false');
  const shown = element('p');
  shown.className = 'code';
  shown.hidden = true;
  show.addEventListener('click', () => {
    if (!shown.firstChild) {
      const image = element('img');
      image.alt = 'QR code of ' + text;
      image.src = address('qr.svg') + '?text=' + encodeURIComponent(text);
      shown.append(image);
      if (isHere) shown.append(element('span', 'This address is of this machine only: for other devices open the page by the name or address of the server.'));
    }
    shown.hidden = !shown.hidden;
    show.setAttribute('aria-expanded', String(!shown.hidden));
  });
  return [show, shown];
}

// --- the list ---

function mark() {
  const name = chosen();
  for (const button of document.querySelectorAll('#titles button')) {
    button.setAttribute('aria-current', String(button.dataset.name === name));
  }
}

// The name of the title in the address.
function chosen() {
  if (location.hash.startsWith(FOLDER)) return '';
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return '';
  }
}

async function load() {
  try {
    const answer = await fetch(address('api/v1/titles'));
    if (!answer.ok) throw new Error(String(answer.status));
    const listed = await answer.json();
    titles = [...await loadLive(), ...listed.titles.map(prepared)];
    rtspPort = listed.rtsp_port;
    mayManage = listed.manage === 'yes';
    mayUpload = listed.upload === 'yes';
    offerUpload(listed.upload);
    go(true);
  } catch (error) {
    at('status').textContent = 'The list of titles cannot be loaded (' + error.message + '). Is the server running?';
  }
}

// --- the player ---

function trouble(why) {
  at('why').textContent = why || '';
  at('trouble').hidden = !why;
}

// hls.js, loaded once it is needed; null if this build of the server has none.
let loading = null;
function hlsLibrary() {
  loading ||= new Promise((resolve) => {
    const script = element('script');
    script.src = address('hls.js');
    script.addEventListener('load', () => resolve(globalThis.Hls || null));
    script.addEventListener('error', () => { loading = null; resolve(null); });
    document.head.append(script);
  });
  return loading;
}

// What a browser calls the codecs that it may have; it has none of the others. MP3 is called one way by Chromium, the other by Firefox.
const NAMES = {
  'H.264': ['video/mp4; codecs="avc1.640028"'],
  'H.265': ['video/mp4; codecs="hvc1.1.6.L93.B0"'],
  'AAC': ['audio/mp4; codecs="mp4a.40.2"'],
  'MP3': ['audio/mpeg', 'audio/mp4; codecs="mp3"'],
  'AC-3': ['audio/mp4; codecs="ac-3"'],
  'E-AC-3': ['audio/mp4; codecs="ec-3"'],
};
const IS_SHOWN = /^(H[.]26|MPEG|MP[123]$|AAC|(E-)?AC-3|AV|VC-1|JPEG|DTS|LPCM|TrueHD|Opus|SMPTE)/;
const IS_PICTURES = /^(H[.]26|MPEG-. video|AV|VC-1|JPEG)/;

// Sounds that can be had apart from the pictures. Where there are several, only then hls.js offers them all.
const APART = ['AAC', 'AC-3', 'E-AC-3'];
function sourceOf(title) {
  const sounds = title.streams.filter((stream) => APART.includes(stream.codec));
  return address(title.cmaf && sounds.length > 1 ? title.cmaf : title.hls);
}

function undecodable(title) {
  const source = globalThis.MediaSource || globalThis.ManagedMediaSource;
  const can = (codec) => NAMES[codec] && (!source || NAMES[codec].some((name) => source.isTypeSupported(name)));
  const codecs = new Set(title.streams.map((stream) => stream.codec));
  return [...codecs].filter((codec) => IS_SHOWN.test(codec) && !can(codec));
}

// Of such a title hls.js would play the sound alone, and say nothing.
function lacksPictures(title) {
  const pictures = title.streams.map((stream) => stream.codec).filter((codec) => IS_PICTURES.test(codec));
  const lacking = undecodable(title);
  return pictures.length > 0 && pictures.every((codec) => lacking.includes(codec));
}

// The audio codecs of a title, if the browser decodes none of them: it can then play the video
// alone.
function lackingAudio(title) {
  const audio = title.streams.map((stream) => stream.codec).filter((codec) => IS_SHOWN.test(codec) && !IS_PICTURES.test(codec));
  const lacking = undecodable(title);
  return title.cmaf && audio.every((codec) => lacking.includes(codec)) ? [...new Set(audio)] : [];
}

// Loads master playlists without audio renditions: hls.js skips variants with a codec that the
// browser lacks, which would leave none.
function picturesOnly(Hls) {
  const strip = (text) => text.split('\n').filter((line) => !line.startsWith('#EXT-X-MEDIA:TYPE=AUDIO'))
    .map((line) => (/,AUDIO="/.test(line) ? line.replace(/,AUDIO="[^"]*"/, '').replace(/(CODECS="[^",]*)[^"]*/, '$1') : line)).join('\n');
  return class extends Hls.DefaultConfig.loader {
    load(context, config, callbacks) {
      const onSuccess = (response, ...rest) => {
        if (context.type === 'manifest') response.data = strip(response.data);
        callbacks.onSuccess(response, ...rest);
      };
      super.load(context, config, { ...callbacks, onSuccess });
    }
  };
}

function cannotDecode(title) {
  const what = undecodable(title);
  const { error } = at('video');
  const why = error && error.message ? ' (' + error.message + ')' : '';
  return 'This browser cannot ' + (what.length ? 'decode ' + what.join(' and ') : 'decode this title' + why) +
    '. Use another player: see the addresses below.';
}

function stop() {
  saveMark();
  if (playing.hls) playing.hls.destroy();
  playing = { ...NOTHING };
  showSeeking(null);
  const video = at('video');
  if (video.hasAttribute('src')) {
    video.removeAttribute('src');
    video.load();
  }
  document.title = [...opened.slice(-1), 'Millrace'].join(' - ');
  trouble('');
  choices('quality', []);
  choices('sound', []);
  offerSubtitles([]);
}

function play() {
  const name = chosen();
  const title = titles.find((title) => title.name === name) || null;
  mark();
  // An old link, or a mistyped one.
  if (name && !title) at('unknown').textContent = 'There is no title “' + name + '” here. It may have been removed, or you may not watch it.';
  // The list may have been loaded anew meanwhile.
  if (title && playing.title && title.id === playing.title.id) return;
  stop();
  at('player').hidden = !title;
  if (title) start(title);
}

// What the address asks for: a folder, a title, or all.
function go(isNew) {
  at('unknown').textContent = '';
  openFolder(isNew);
  play();
}

// Ways to open a title in other programs, each with a line to copy.
function linesOf(title) {
  const hls = address(title.hls);
  const page = document.baseURI.split('#')[0] + '#' + encodeURIComponent(title.name);
  const rtsp = rtspPort && ['rtsp:', '', location.hostname + ':' + rtspPort, title.name].join('/');
  return [
    ...(rtsp ? [['RTSP, for set-top boxes', rtsp, true]] : []),
    ['HLS, for players and browsers', hls],
    ['FFmpeg', 'ffplay ' + (rtsp || hls)],
    ['VLC', 'vlc ' + (rtsp || hls)],
    ['The file', address(title.file)],
    ['All titles as a playlist (M3U)', address('titles.m3u')],
    ['This page', page, true],
  ];
}

async function start(title) {
  const video = at('video');
  const source = sourceOf(title);
  playing.title = title;
  showSeeking(title.isLive ? null : title);
  // A live title plays at its own speed; whether it can be rewound is seen later.
  for (const id of ['of-seek', 'seek-time', 'of-speed']) at(id).hidden = Boolean(title.isLive);
  at('to-edge').hidden = true;
  at('playing').textContent = title.title;
  document.title = title.title + ' - Millrace';
  at('about').textContent = about(title);
  at('elsewhere').open = false;
  at('lines').replaceChildren(...linesOf(title).flatMap((way) => line(...way)));
  offerMark(title);
  offerManagement(title);
  offerRecording(title);
  at('player').scrollIntoView({ block: 'start' });
  video.focus({ preventScroll: true });
  const isNative = video.canPlayType(HLS_TYPE) !== '';
  // Who lets a page choose sounds plays HLS well himself. Others are left to hls.js, with which the quality can be chosen.
  const library = isNative && 'audioTracks' in video ? null : await hlsLibrary();
  await bring(title);
  if (playing.title !== title) return;
  if (library && library.isSupported()) {
    if (lacksPictures(title)) failed(cannotDecode(title));
    else playWith(library, title, title.inParts ? address(title.inParts) : lackingAudio(title).length ? address(title.cmaf) : source);
  } else if (isNative) {
    video.src = source;
    begin();
  } else {
    failed(library ? 'This browser supports neither HLS nor what hls.js needs to play it.'
      : 'This browser does not support HLS, and this server was built without hls.js. Use another player: see the addresses below.');
  }
}

// Browsers may want a click first: then the controls are there.
function begin() {
  const video = at('video');
  video.playbackRate = playing.title.isLive ? 1 : Number(at('speed').value);
  video.play().catch(() => {});
}

function failed(why) {
  trouble(why);
  at('elsewhere').open = true;
}

function playWith(Hls, title, source) {
  const lacking = lackingAudio(title);
  // A viewer of a live title that has fallen behind catches up, too little faster to be heard.
  const fastest = title.isLive ? 1.1 : 1;
  const hls = new Hls({ enableWorker: false, backBufferLength: 60, maxLiveSyncPlaybackRate: fastest, ...(lacking.length && { pLoader: picturesOnly(Hls) }) });
  playing.hls = hls;
  const hint = lacking.length ? 'This browser cannot decode ' + lacking.join(' and ') + ', so there is no sound. Use another player: see the addresses below.' : '';
  if (hint) failed(hint);
  hls.on(Hls.Events.MANIFEST_PARSED, () => {
    showLevels();
    begin();
  });
  hls.on(Hls.Events.LEVEL_SWITCHED, showLevels);
  // The newest place moves on while a player that waits for media stands still.
  hls.on(Hls.Events.LEVEL_UPDATED, showRewind);
  const showSounds = () => {
    const sounds = hls.audioTracks.map((track, number) => [number, track.name || track.lang || 'Sound ' + (number + 1)]);
    choices('sound', sounds, hls.audioTrack);
  };
  hls.on(Hls.Events.AUDIO_TRACKS_UPDATED, showSounds);
  hls.on(Hls.Events.AUDIO_TRACK_SWITCHED, showSounds);
  const showSubtitles = () => offerSubtitles(hls.subtitleTracks.map((track) => track.name || track.lang), hls.subtitleTrack);
  hls.on(Hls.Events.SUBTITLE_TRACKS_UPDATED, showSubtitles);
  hls.on(Hls.Events.SUBTITLE_TRACK_SWITCH, showSubtitles);
  hls.on(Hls.Events.FRAG_BUFFERED, () => { if (!at('video').error) trouble(hint); });
  hls.on(Hls.Events.ERROR, (_, data) => {
    const whole = address(title.hls);
    if (data.details === Hls.ErrorDetails.MANIFEST_LOAD_ERROR && source !== whole) {
      // It cannot be had with its sounds apart, or in parts.
      hls.destroy();
      playWith(Hls, title, whole);
    } else {
      hlsError(Hls, title, data);
    }
  });
  hls.loadSource(source);
  hls.attachMedia(at('video'));
}

function offerSubtitles(names, chosen) {
  const options = names.map((name, number) => [number, name || 'Subtitles ' + (number + 1)]);
  choices('subtitles', options.length ? [[-1, 'None'], ...options] : [], chosen);
}

function showLevels() {
  const { levels, autoLevelEnabled, currentLevel, nextLevel } = playing.hls;
  const name = (level) => (level.height ? level.height + 'p, ' : '') + megabits(level.bitrate);
  const now = levels[currentLevel];
  const automatic = 'Automatic' + (autoLevelEnabled && now && now.height ? ' (' + now.height + 'p)' : '');
  const options = levels.map((level, number) => [number, name(level)]).reverse();
  choices('quality', options.length < 2 ? [] : [[-1, automatic], ...options], autoLevelEnabled ? -1 : nextLevel);
}

// What the server said to hls.js.
function reason(data) {
  try {
    const body = data.networkDetails.response;
    return JSON.parse(typeof body === 'string' ? body : new TextDecoder().decode(body)).error.message;
  } catch {
    const status = data.response && data.response.code;
    return status ? 'the server answers with status ' + status : 'the server does not answer';
  }
}

function hlsError(Hls, title, data) {
  if (data.type === Hls.ErrorTypes.NETWORK_ERROR && data.details !== Hls.ErrorDetails.MANIFEST_INCOMPATIBLE_CODECS_ERROR) {
    const is4xx = data.response && data.response.code >= 400;
    if (data.fatal) trouble('The title cannot be loaded: ' + reason(data) + '.');
    else if (is4xx) trouble('Waiting: ' + reason(data) + '.');
  } else if (data.fatal && data.details === Hls.ErrorDetails.BUFFER_STALLED_ERROR) {
    trouble('Playback has stopped: no more data arrives.');
  } else if (data.fatal && data.type === Hls.ErrorTypes.MEDIA_ERROR && data.details !== Hls.ErrorDetails.MANIFEST_INCOMPATIBLE_CODECS_ERROR) {
    decoderFailed(title);
  } else if (data.fatal) {
    failed(cannotDecode(title));
  }
}

// A decoder that fails again sooner is given up.
const RECOVERY_MS = 10_000;

// Tries to go on from where it stopped; a live title goes on from its newest place, as what the decoder failed on may be damaged.
function decoderFailed(title) {
  const now = performance.now();
  if (undecodable(title).length || now - playing.recoveredAt < RECOVERY_MS) return failed(cannotDecode(title));
  playing.recoveredAt = now;
  playing.hls.recoverMediaError();
  const toEdge = () => { if (playing.title === title) at('video').currentTime = edge(); };
  if (title.isLive) at('video').addEventListener('loadedmetadata', toEdge, { once: true });
  begin();
}

// A decoder that fails once all is fetched is not told by hls.js. The rest is of a title that the browser plays itself.
async function mediaError() {
  const { title, hls } = playing;
  if (!title || !at('video').error) return;
  if (hls) return decoderFailed(title);
  const whole = address(title.hls);
  if (at('video').src !== whole) {
    at('video').src = whole;
    return begin();
  }
  let why = cannotDecode(title);
  try {
    const answer = await fetch(whole);
    if (!answer.ok) why = (await answer.json()).error.message;
  } catch {
    why = 'The server does not answer.';
  }
  failed(why);
}

// Sounds that the browser offers itself.
function nativeSounds() {
  const tracks = at('video').audioTracks;
  if (playing.hls || !tracks) return;
  const all = [...tracks];
  choices('sound', all.map((track, number) => [number, track.label || track.language || 'Sound ' + (number + 1)]),
    all.findIndex((track) => track.enabled));
}

// The same of subtitles.
const ownSubtitles = () => [...at('video').textTracks].filter(({ kind }) => kind === 'subtitles' || kind === 'captions');
function nativeSubtitles() {
  if (!playing.title || playing.hls) return;
  const all = ownSubtitles();
  offerSubtitles(all.map((track) => track.label || track.language), all.findIndex((track) => track.mode === 'showing'));
}

function close() {
  const name = chosen();
  location.hash = hashOf(opened);
  stop();
  show();
  const button = tileOf(name);
  (button || at('search')).focus();
}

const KEYS = {
  j: (video) => { video.currentTime -= 10; },
  l: (video) => { video.currentTime += 10; },
  m: (video) => { video.muted = !video.muted; },
  f: () => wholeScreen(),
  t: () => switchTheatre(),
  ' ': () => playOrPause(),
  arrowleft: (video) => { video.currentTime -= 5; },
  arrowright: (video) => { video.currentTime += 5; },
  arrowup: (video) => { video.volume = Math.min(1, video.volume + 0.1); },
  arrowdown: (video) => { video.volume = Math.max(0, video.volume - 0.1); },
};

// --- the server ---

const STATUS_EVERY_MS = 2000;
// The last figures, and when they came: the bit rate is what has been sent since.
let before = null;

function list(id, lines, none) {
  at(id).replaceChildren(...(lines.length ? lines : [none]).map((text) => element('li', text)));
}

const share = ({ used, of }) => (of ? used / of : 0);

// The server counts thousandths of a core; the page shows percent.
function resource(what) {
  const core = what.match(/^thousandths of the core of engine (\d+)$/);
  return core ? 'processor of engine ' + core[1] : what;
}

function showStatus(status) {
  const now = performance.now();
  const rate = before ? Math.max(0, status.sent_bytes - before.bytes) * 8000 / (now - before.at) : 0;
  before = { bytes: status.sent_bytes, at: now };
  const fullest = status.room.reduce((a, b) => (share(b) > share(a) ? b : a), { what: '', used: 0, of: 0 });
  const percent = (room) => Math.round(100 * share(room)) + ' %';
  const ill = status.members.filter((member) => member.trouble);
  at('load').textContent = [
    status.streams === 0 ? 'Nothing is playing' : (status.streams === 1 ? '1 stream is' : status.streams + ' streams are') + ' playing, ' + megabits(rate) + ' in all',
    status.streams > 0 && 'no packet left more than ' + Math.round(status.late_max_s * 1000) + ' ms late',
    share(fullest) > 0 && 'most used: ' + percent(fullest) + ' of ' + resource(fullest.what),
    ill.length && ill.length + ' of ' + status.members.length + ' disks need attention'].filter(Boolean).join('; ') + '.';
  at('room').replaceChildren(...status.room.map((room) => {
    const item = element('li');
    const meter = element('meter', percent(room));
    [meter.max, meter.high, meter.value] = [1, 0.9, Math.min(1, share(room))];
    meter.setAttribute('aria-label', resource(room.what));
    const isShare = room.what !== resource(room.what);
    const count = isShare ? percent(room) : room.used.toLocaleString('en') + ' of ' + room.of.toLocaleString('en');
    item.append(meter, ' ' + (isShare ? resource(room.what) + ': ' + count : count + ' ' + room.what));
    return item;
  }));
  list('members', status.members.map(({ member, place, trouble }) => trouble || 'disk ' + member + ' at ' + place + ' works'), 'one directory, without parity');
  at('sessions').replaceChildren(...status.sessions.map((session) => {
    const row = element('tr');
    const at = session.position_s === null ? '' : seconds(session.position_s);
    const lost = session.lost === null ? '' : (100 * session.lost).toFixed(1) + ' %';
    [session.title, session.peer + ' by ' + session.transport, session.is_playing ? at : at + ' paused', megabits(session.bits_per_s), lost]
      .forEach((text) => row.append(element('td', text)));
    return row;
  }));
  at('more').textContent = status.sessions_left_out ? 'and ' + status.sessions_left_out + ' more, started earlier'
    : status.sessions.length ? '' : 'no viewers';
  list('refusals', status.refusals.map(({ at_unix_s, what, more }) =>
    new Date(at_unix_s * 1000).toLocaleTimeString('en-GB') + ' ' + what + (more ? ' (and ' + more + ' more)' : '')), 'none');
  at('server').hidden = false;
}

// Asks again and again while the page can be seen; never again once it is told that this is not for it.
async function watchServer() {
  if (!document.hidden) {
    try {
      const answer = await fetch(address('api/v1/status'));
      if (answer.status === 403) return;
      if (answer.ok) showStatus(await answer.json());
    } catch {
      at('load').textContent = 'This server does not answer.';
    }
  }
  setTimeout(watchServer, STATUS_EVERY_MS);
}

// --- what people do ---

choices('speed', SPEEDS.map((speed) => [speed, speed + ' ×']), 1);
at('video').addEventListener('error', mediaError);
at('video').addEventListener('loadedmetadata', nativeSounds);
at('video').addEventListener('keydown', (event) => {
  const does = KEYS[event.key.toLowerCase()];
  if (does && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    does(at('video'));
  }
});
at('quality').addEventListener('change', () => { playing.hls.nextLevel = Number(at('quality').value); });
at('sound').addEventListener('change', () => {
  const number = Number(at('sound').value);
  if (playing.hls) playing.hls.audioTrack = number;
  else [...at('video').audioTracks].forEach((track, other) => { track.enabled = other === number; });
});
at('subtitles').addEventListener('change', () => {
  const number = Number(at('subtitles').value);
  if (playing.hls) playing.hls.subtitleTrack = number;
  else ownSubtitles().forEach((track, other) => { track.mode = other === number ? 'showing' : 'disabled'; });
});
at('video').textTracks.addEventListener('addtrack', nativeSubtitles);
at('video').textTracks.addEventListener('change', nativeSubtitles);
at('speed').addEventListener('change', () => { at('video').playbackRate = Number(at('speed').value); });
at('again').addEventListener('click', () => {
  stop();
  play();
});
at('close').addEventListener('click', close);
addEventListener('hashchange', () => go(false));
addEventListener('keydown', (event) => {
  // Nothing is typed into the seek bar.
  const isTyped = event.target instanceof HTMLInputElement && event.target.type !== 'range' || event.target instanceof HTMLSelectElement;
  if (event.key === '/' && !isTyped) {
    event.preventDefault();
    at('search').focus();
  } else if (event.key === 'Escape' && playing.title && !isTyped && !document.fullscreenElement && !document.querySelector('dialog[open]')) {
    close();
  }
});
// Runs once all parts of the script are loaded.
addEventListener('DOMContentLoaded', async () => {
  await load();
  watchLive();
});
// Other visitors may not see the status, so only a page on localhost polls it.
if (isHere) watchServer();
