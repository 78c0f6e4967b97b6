// Titles from their beginning to their end: every rendition, each of two sounds, subtitles.
import { check, checkNumbers, choose, figures, hasReached, pageUrl, PATIENCE_MS, picturesTo, title, video } from './common.mjs';

const SEGMENT_AT_MOST_S = 9;

// Every rendition by hls.js to the end: pictures at their times, none of them damaged. The player goes over to it with the segment behind the one that it shows.
export async function checkLevels(page) {
  await page.goto(pageUrl);
  await choose(page).click();
  const options = page.locator('#quality option');
  await options.nth(1).waitFor({ state: 'attached' });
  const values = (await options.evaluateAll((all) => all.map((option) => option.value))).slice(1);
  for (const value of values) {
    await page.evaluate(() => {
      document.querySelector('video').currentTime = 0;
      document.querySelector('video').play();
    });
    await page.waitForFunction(() => !document.querySelector('video').seeking && document.querySelector('video').currentTime > 0.1);
    await page.getByLabel('Quality').selectOption(value);
    const height = Number.parseInt(await page.locator(`#quality option[value="${value}"]`).textContent(), 10);
    const shown = await picturesTo(page, Infinity);
    checkNumbers(shown, `${height}p`);
    const from = shown.findIndex((picture) => picture.height === height);
    const rest = shown.slice(from);
    check(from >= 0 && rest[0].mediaTime < SEGMENT_AT_MOST_S, `${height}p is shown from ${JSON.stringify(rest[0])}`);
    check(rest.every((picture) => picture.height === height), `${height}p: pictures of another rendition`);
    check(rest.at(-1).mediaTime > rest[0].mediaTime + 5, `${height}p ends after ${JSON.stringify(rest.at(-1))}`);
    const quality = await page.evaluate(() => {
      const { corruptedVideoFrames, totalVideoFrames } = document.querySelector('video').getVideoPlaybackQuality();
      return { corruptedVideoFrames, totalVideoFrames };
    });
    // Firefox does not tell.
    check(!quality.corruptedVideoFrames, `${quality.corruptedVideoFrames} of ${quality.totalVideoFrames} pictures are damaged`);
    figures.push(`${height}p: ${rest.length} pictures at their times to ${rest.at(-1).mediaTime} s, from ${rest[0].mediaTime} s`);
  }
}

// A title with several sounds plays with these apart from its pictures: the one that is chosen is fetched, and playing goes on with it.
export async function checkSounds(page) {
  const fetched = [];
  page.on('response', (response) => {
    const track = new URL(response.url()).pathname.match(/[/]cmaf[/][^/]+[/](\d+)[/]\d+[.]m4s$/);
    if (track && response.ok()) fetched.push(track[1]);
  });
  await page.goto(pageUrl);
  await choose(page).click();
  await hasReached(page, 0.5);
  const options = page.locator('#sound option');
  await options.nth(1).waitFor({ state: 'attached' });
  const names = await options.allTextContents();
  check(names.join() === 'English,German', `sounds can be chosen among ${names}`);
  const first = [...new Set(fetched)];
  check(first.length === 2, `before the choice tracks ${first} were fetched: not one of pictures and one of sound`);
  await page.locator('#sound').selectOption({ label: 'German' });
  const isOther = async () => fetched.some((track) => !first.includes(track));
  for (const end = Date.now() + PATIENCE_MS; !(await isOther());) {
    check(Date.now() < end, 'the other sound was not fetched');
    await page.waitForTimeout(50);
  }
  await hasReached(page, await video(page, 'currentTime') + 1);
  check(await page.locator('#sound').evaluate((select) => select.selectedOptions[0].text) === 'German', 'the choice was forgotten');
  figures.push(`sounds ${names.join(', ')}; tracks ${[...new Set(fetched)].join(', ')}`);
}

// A title with audio that browsers lack plays with the rest, and the page says what is missing.
export async function checkCodecs(page) {
  await page.goto(pageUrl);
  const { codecs, hasAc3 } = await page.evaluate(async (title) => {
    const { streams } = await (await fetch('api/v1/titles/' + title)).json();
    return { codecs: streams.map(({ codec }) => codec), hasAc3: MediaSource.isTypeSupported('audio/mp4; codecs="ac-3"') };
  }, title);
  check(codecs.includes('AC-3'), `the title has ${codecs}`);
  await choose(page).click();
  await hasReached(page, 3);
  const isHeard = codecs.includes('AAC') || hasAc3;
  const decoded = await page.evaluate(() => {
    const { webkitAudioDecodedByteCount, mozHasAudio } = document.querySelector('video');
    return webkitAudioDecodedByteCount ?? Number(mozHasAudio);
  });
  check((decoded > 0) === isHeard, `of ${codecs} audio of ${decoded} is decoded`);
  const isTold = await page.getByRole('alert').filter({ hasText: /cannot decode .*AC-3, so there is no sound/ }).isVisible();
  check(isTold === !isHeard, `with ${codecs} the page says "${await page.locator('#trouble').textContent()}"`);
  figures.push(`${codecs.join(' + ')}: ${isHeard ? 'heard' : 'pictures alone'}`);
}

// Subtitles are shown once they are chosen, each when its text says; and not any more once none are.
export async function checkSubtitles(page) {
  await page.goto(pageUrl);
  await choose(page).click();
  await hasReached(page, 0.5);
  const options = page.locator('#subtitles option');
  await options.nth(1).waitFor({ state: 'attached' });
  const names = await options.allTextContents();
  check(names.join() === 'None,German', `subtitles can be chosen among ${names}`);
  const showing = () => page.evaluate(() => [...document.querySelector('video').textTracks].filter(({ mode }) => mode === 'showing').length);
  check(await showing() === 0, 'subtitles are shown that nobody asked for');
  await page.locator('#subtitles').selectOption({ label: 'German' });
  // What is shown, with the time, until the film has ended.
  const seen = await page.evaluate((patience) => new Promise((resolve, reject) => {
    const video = document.querySelector('video');
    const seen = [];
    const look = () => {
      for (const { mode, activeCues } of video.textTracks) {
        if (mode === 'showing') [...activeCues].forEach((cue) => seen.push({ at: video.currentTime, text: cue.text, from: cue.startTime, to: cue.endTime }));
      }
      if (!video.ended) video.requestVideoFrameCallback(look);
    };
    look();
    video.addEventListener('ended', () => resolve(seen), { once: true });
    setTimeout(() => reject(new Error(`the film has not ended at ${video.currentTime} s`)), patience);
  }), 2 * PATIENCE_MS);
  const texts = new Map(seen.map((cue) => [cue.text, cue]));
  check(texts.size >= 3, `shown: ${JSON.stringify([...texts.keys()])}`);
  // Where a film was joined its time is off by some pictures.
  const near = (a, b) => Math.abs(a - b) < 0.25;
  for (const { at, text, from, to } of seen) {
    const said = text.match(/^from ([\d.]+) to ([\d.]+) s$/);
    check(said && near(from, Number(said[1])) && near(to, Number(said[2])), `"${text}" is a cue from ${from} to ${to} s`);
    check(at > from - 0.25 && at < to + 0.25, `"${text}" is shown at ${at} s`);
  }
  const last = Math.max(...seen.map(({ from }) => from));
  check(last > await video(page, 'duration') - 5, `the last one is of ${last} s`);
  await page.locator('#subtitles').selectOption({ label: 'None' });
  check(await showing() === 0, 'subtitles are shown that were switched off');
  figures.push(`${texts.size} subtitles at their times, the last at ${last.toFixed(2)} s`);
}

// A title of two recordings as fragmented MP4, which the page takes only where it has to, is played to its end by hls.js without a hole at the seam.
export async function checkJoined(page) {
  await page.goto(pageUrl);
  const { complaints, frames, length, ended } = await page.evaluate(async ([address, patience]) => {
    const script = document.createElement('script');
    script.src = 'hls.js';
    await new Promise((resolve, reject) => { Object.assign(script, { onload: resolve, onerror: reject }); document.head.append(script); });
    const video = Object.assign(document.createElement('video'), { muted: true });
    document.body.append(video);
    const { Hls } = globalThis;
    const hls = new Hls({ enableWorker: false });
    const complaints = [];
    // It says so if it finds a hole, and goes past it.
    hls.on(Hls.Events.ERROR, (_, { details }) => { if (details.startsWith('buffer')) complaints.push(`${details} at ${video.currentTime} s`); });
    hls.loadSource(address);
    hls.attachMedia(video);
    await new Promise((resolve) => { hls.on(Hls.Events.MANIFEST_PARSED, resolve); });
    await video.play();
    await new Promise((resolve) => { video.addEventListener('ended', resolve, { once: true }); setTimeout(resolve, patience); });
    return { complaints, frames: video.getVideoPlaybackQuality().totalVideoFrames, length: video.duration, ended: video.ended };
  }, [`titles/${title}/cmaf.m3u8`, 2 * PATIENCE_MS]);
  check(complaints.length === 0, complaints.join('; '));
  check(ended, 'it does not end');
  check(Math.abs(frames - length * 25) < 3, `${frames} pictures in ${length} s`);
  figures.push(`${frames} pictures in ${length.toFixed(2)} s, no hole`);
}
