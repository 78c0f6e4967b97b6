// A live title: it is watched, recorded, rewound, and left for its newest place again.
import { spawn } from 'node:child_process';
import { check, figures, pageUrl, PATIENCE_MS, until, video } from './common.mjs';

// Behind the newest part: what players of low-latency HLS are promised.
const MOST_LATENCY_S = 2;

// Rewinding is offered from twenty seconds on, behind the three segments that players keep away from the newest one.
const REWIND_MS = 60_000;

// Brings what an encoder makes, until it is told to stop.
function bring() {
  const pictures = ['-re', '-f', 'lavfi', '-i', 'testsrc2=size=320x180:rate=25', '-re', '-f', 'lavfi', '-i', 'sine=frequency=440'];
  const codecs = ['-c:v', 'libx264', '-preset', 'ultrafast', '-tune', 'zerolatency', '-pix_fmt', 'yuv420p', '-g', '50', '-c:a', 'aac'];
  const to = ['-f', 'mpegts', '-method', 'PUT', new URL('live/studio', pageUrl).href];
  const ffmpeg = spawn('ffmpeg', ['-v', 'error', ...pictures, ...codecs, ...to], { stdio: ['pipe', 'inherit', 'inherit'] });
  const ended = new Promise((resolve) => ffmpeg.on('exit', resolve));
  return { ffmpeg, ended };
}

const isAtEdge = () => {
  const { readyState, seeking } = document.querySelector('video');
  return document.querySelector('#to-edge').hidden && readyState > 2 && !seeking;
};

export async function checkLive(page) {
  const { ffmpeg, ended } = bring();
  try {
    await watchAndRecord(page);
    // A player of a title that ends complains.
    await page.goto('about:blank');
    ffmpeg.stdin.write('q');
    check(await ended === 0, 'the media was not taken to its end');
  } finally {
    ffmpeg.kill('SIGKILL');
  }
}

async function watchAndRecord(page) {
  const playlist = () => page.context().request.get(new URL('live/studio/index.m3u8', pageUrl).href);
  for (const end = Date.now() + PATIENCE_MS; !(await playlist()).ok();) {
    check(Date.now() < end, 'the live title has no segment');
    await page.waitForTimeout(100);
  }
  await page.goto(pageUrl);
  await page.locator('#titles button[data-name="live/studio"]').click();
  await until(page, 'the live title plays', () => document.querySelector('video').currentTime > 0 && !document.querySelector('video').paused);
  await until(page, 'it plays in parts', () => playing.hls?.latestLevelDetails?.partList?.length > 0);
  const asked = await page.evaluate(() => playing.hls.latestLevelDetails.partHoldBack);
  check(asked > 0 && asked <= MOST_LATENCY_S, `players are asked to stay ${asked} s behind`);
  // The player catches up by playing a little faster.
  await until(page, 'it plays two seconds or less behind', (most) => playing.hls?.latency > 0 && playing.hls.latency <= most, MOST_LATENCY_S);
  const latency = await page.evaluate(() => playing.hls.latency);
  await page.getByRole('button', { name: 'Record' }).click();
  await page.getByRole('button', { name: 'Stop recording' }).waitFor();
  await page.locator('#of-seek').waitFor({ state: 'visible', timeout: REWIND_MS });
  const back = page.getByRole('button', { name: 'Back to live' });
  // A player that began late on a busy machine may be far behind.
  if (await back.isVisible()) await back.click();
  await until(page, 'it plays at its newest place', isAtEdge);
  const before = await video(page, 'currentTime');
  await page.locator('#seek').focus();
  for (let step = 0; step < 3; step++) await page.keyboard.press('ArrowLeft');
  await back.waitFor();
  const rewound = await video(page, 'currentTime');
  check(rewound < before - 10, `three steps back lead from ${before} to ${rewound} s`);
  await until(page, 'it plays where it was rewound to', (from) => document.querySelector('video').currentTime > from + 1, rewound);
  await back.click();
  await until(page, 'it plays at its newest place again', isAtEdge);
  check(await video(page, 'currentTime') > before, 'the newest place has not moved on');
  await page.getByRole('button', { name: 'Stop recording' }).click();
  await page.getByText('The recording is a title within moments.').waitFor();
  // The list has elements only for what is in the viewport.
  await page.locator('#search').fill('studio 20');
  await page.locator('#titles button', { hasText: /studio 20\d\d-/ }).waitFor({ timeout: REWIND_MS });
  figures.push(`${latency.toFixed(2)} s behind the newest part, rewound from ${before.toFixed(1)} to ${rewound.toFixed(1)} s and back, and recorded`);
}
