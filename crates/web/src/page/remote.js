
// --- titles of the library ---

const COMING_EVERY_MS = 2000;

// Where the media of a title are, if they are not here.
function coming({ library }) {
  if (!library || library.state === 'cached') return '';
  if (library.state === 'fetching') return 'Coming, ' + library.percent + ' %';
  return { remote: 'In the library', waiting: 'Coming' }[library.state] || 'Cannot be fetched from the library now';
}

// Has a title fetched that is not here, and waits for it as long as it is the chosen one.
async function bring(title) {
  while (coming(title) && playing.title === title) {
    try {
      // Whoever asks for its playlist has it fetched.
      if (['remote', 'failed'].includes(title.library.state)) await fetch(address(title.hls));
      const answer = await fetch(address('api/v1/titles/' + encodeURIComponent(title.name)));
      if (answer.ok) title.library = (await answer.json()).library;
    } catch {
      // It is asked again.
    }
    if (playing.title !== title) return;
    trouble(coming(title) && coming(title) + '. It is played when it is here.');
    at('about').textContent = about(title);
    if (coming(title)) await new Promise((done) => setTimeout(done, COMING_EVERY_MS));
  }
}
