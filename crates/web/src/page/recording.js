
// --- recordings of live titles ---

// The button begins to record the live title that plays, or ends that.
function offerRecording(title) {
  at('record').hidden = !(title.isLive && mayUpload);
  at('record').textContent = title.recording ? 'Stop recording' : 'Record';
  at('recorded').textContent = title.recording ? 'Recorded as “' + title.recording.title + '”.' : '';
}

// Loads the list until a recording that has ended is in it: a long one takes a while to become a title.
const LOADS_AT_MOST = 24;
async function awaitTitle(shown) {
  for (let n = 0; n < LOADS_AT_MOST && !titles.some(({ title }) => title === shown); n++) {
    await new Promise((resolve) => { setTimeout(resolve, LIVE_EVERY_MS); });
    await load();
  }
}

at('record').addEventListener('click', async () => {
  const { title } = playing;
  const recorded = title.recording;
  const method = recorded ? 'DELETE' : 'PUT';
  at('record').disabled = true;
  try {
    const answer = await fetch(address(title.name.split('/').map(encodeURIComponent).join('/') + '/recording'), { method });
    const why = await outcome(answer);
    if (!why) title.recording = method === 'PUT' ? await answer.json() : null;
    if (playing.title === title) offerRecording(title);
    at('recorded').textContent = why ? 'Not recorded: ' + why + '.' : title.recording ? at('recorded').textContent : 'The recording is a title within moments.';
    if (recorded && !why) awaitTitle(recorded.title);
  } catch {
    at('recorded').textContent = 'The server does not answer.';
  }
  at('record').disabled = false;
});
