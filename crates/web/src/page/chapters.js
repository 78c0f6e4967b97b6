
// --- chapters ---

// When those of the shown title start, in seconds.
let chapterStarts = [];

async function showChapters(title) {
  chapterStarts = [];
  at('chapter-marks').replaceChildren();
  choices('chapter', []);
  if (!title || !title.chapters) return;
  try {
    const answer = await fetch(address(title.chapters));
    const chapters = answer.ok ? await answer.json() : [];
    if (seeking.title !== title) return;
    chapterStarts = chapters.map((chapter) => chapter['start-time']);
    choices('chapter', chapters.map(({ titles }, index) => [index, seconds(chapterStarts[index]) + ' ' + titles[0].title]), 0);
    at('chapter-marks').replaceChildren(...chapterStarts.map((start) => new Option('', start)));
    showChapter();
  } catch {
    // The film plays without.
  }
}

// The one that is playing. Players stop some milliseconds before the place that they are sent to.
function showChapter() {
  const next = chapterStarts.findIndex((start) => start > at('video').currentTime + .1);
  const index = String((next < 0 ? chapterStarts.length : next) - 1);
  if (chapterStarts.length && at('chapter').value !== index) at('chapter').value = index;
}

at('chapter').addEventListener('change', () => { at('video').currentTime = chapterStarts[at('chapter').value]; });
at('video').addEventListener('timeupdate', showChapter);
