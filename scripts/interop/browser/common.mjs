// What all parts of the check use: its arguments, the figures that it prints, and the pictures that are shown with the numbers drawn into them.
export const [playwright, browser, pageUrl, title, part, pictures] = process.argv.slice(2);

const FRAMES_PER_SECOND = 25;
// The number of a picture, its lowest bit on the left: as many blocks side by side as the picture is wide, white for 1, in its lowest sixth.
export const NUMBER_BITS = 10;
// What Firefox draws of a film that plays is often the picture before the one that it reports, and one further back on a busy machine: some may be so many
// late, all of them so many.
const [SOME_LATE, ALL_LATE] = browser === 'chromium' ? [0, 0] : [25, 4];
// For whatever has to happen: a bound against hanging, not a measure.
export const PATIENCE_MS = 20_000;

// Lines that are printed if all is well.
export const figures = [];

export function check(is, what) {
  if (!is) throw new Error(what);
}

// In the page: reads the number of the picture that is shown, and waits for pictures.
export function helpers(bits) {
  const canvas = document.createElement('canvas');
  globalThis.numberShown = () => {
    const video = document.querySelector('video');
    canvas.width = video.videoWidth;
    canvas.height = video.videoHeight;
    const context = canvas.getContext('2d', { willReadFrequently: true });
    context.drawImage(video, 0, 0);
    let number = 0;
    for (let bit = 0; bit < bits; bit++) {
      const x = Math.floor((bit + 0.5) * canvas.width / bits);
      const { data } = context.getImageData(x - 2, Math.floor(canvas.height * 11 / 12) - 2, 5, 5);
      const light = data.reduce((sum, value, at) => sum + (at % 4 === 1 ? value : 0), 0) / 25;
      if (light > 128) number |= 1 << bit;
    }
    return number;
  };
  // Pictures as they are shown, until one is at `end` seconds or the film has ended: their numbers, times and heights.
  globalThis.picturesTo = (end, patience) => new Promise((resolve, reject) => {
    const video = document.querySelector('video');
    const shown = [];
    const over = () => resolve(shown);
    const next = (_, { mediaTime, height }) => {
      shown.push({ number: globalThis.numberShown(), mediaTime, height });
      if (mediaTime >= end) over();
      else video.requestVideoFrameCallback(next);
    };
    video.requestVideoFrameCallback(next);
    video.addEventListener('ended', over, { once: true });
    const state = () => `${shown.length} pictures; at ${video.currentTime} s, paused ${video.paused}, ready ${video.readyState}`;
    setTimeout(() => reject(new Error(`no picture at ${end} s: ${state()}`)), patience);
  });
}

// Pictures must be those of their times. The sound begins up to two pictures before the first, and what is drawn may be the next one already.
export function checkNumbers(shown, what) {
  check(shown.length > 0, `${what}: no picture was shown`);
  const offset = ({ number, mediaTime }) => number - Math.round(mediaTime * FRAMES_PER_SECOND);
  const wrong = shown.filter((picture) => offset(picture) > 2 || offset(picture) < -2 - SOME_LATE);
  check(wrong.length === 0, `${what}: ${wrong.length} of ${shown.length} pictures are not those of their time, the first ${JSON.stringify(wrong[0])}`);
  const nearest = Math.max(...shown.map(offset));
  check(nearest >= -2 - ALL_LATE, `${what}: all pictures are ${-nearest} or more behind their time`);
}

export const picturesTo = (page, end) =>
  page.evaluate(([end, patience]) => globalThis.picturesTo(end, patience), [end, 2 * PATIENCE_MS]);
export const video = (page, what) => page.evaluate((what) => document.querySelector('video')[what], what);

// Waits until `is` holds in the page for `argument`, and names what did not happen.
export const until = (page, what, is, argument) => page.waitForFunction(is, argument).catch(async () => {
  const state = ['currentTime', 'readyState', 'paused', 'seeking'];
  const values = await page.evaluate((state) => state.map((name) => `${name} ${document.querySelector('video')[name]}`).join(', '), state);
  throw new Error(`not within ${PATIENCE_MS / 1000} s: ${what} (${values})`);
});
export const hasReached = (page, time) =>
  page.waitForFunction((time) => document.querySelector('video').currentTime >= time, time, { timeout: PATIENCE_MS });

// Waits until a seek of a film that stands still is over, and compares the picture. The sound may begin up to four pictures before the first.
export async function checkSought(page, to, what) {
  const at = await video(page, 'currentTime');
  check(Math.abs(at - to) < 0.1, `${what}: the player is at ${at} s, not at ${to} s`);
  const isThere = (wanted) => {
    const { seeking, readyState } = document.querySelector('video');
    return !seeking && readyState >= 2 && Math.abs(globalThis.numberShown() - wanted) <= 4;
  };
  await page.waitForFunction(isThere, Math.round(to * FRAMES_PER_SECOND)).catch(async () => {
    throw new Error(`${what}: at ${to} s picture ${await page.evaluate(() => globalThis.numberShown())} is shown`);
  });
  return page.evaluate(() => globalThis.numberShown());
}

export const choose = (page) => page.locator('#titles button', { has: page.getByText(title, { exact: true }) });

