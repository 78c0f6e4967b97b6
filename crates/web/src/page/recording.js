
// --- recordings of live titles ---

// The button begins to record the live title that plays, or ends that.
function offerRecording(title) {
  at('record').hidden = !(title.isLive && mayUpload);
  at('record').textContent = title.recording ? 'Stop recording' : 'Record';
  at('recorded').textContent = title.recording ? 'Recorded as “' + title.recording.title + '”.' : '';
}

at('record').addEventListener('click', async () => {
  const { title } = playing;
  const method = title.recording ? 'DELETE' : 'PUT';
  at('record').disabled = true;
  try {
    const answer = await fetch(address(title.name.split('/').map(encodeURIComponent).join('/') + '/recording'), { method });
    const why = await outcome(answer);
    if (!why) title.recording = method === 'PUT' ? await answer.json() : null;
    if (playing.title === title) offerRecording(title);
    at('recorded').textContent = why ? 'Not recorded: ' + why + '.' : title.recording ? at('recorded').textContent : 'The recording is a title within moments.';
    if (!why && !title.recording) setTimeout(load, LIVE_EVERY_MS);
  } catch {
    at('recorded').textContent = 'The server does not answer.';
  }
  at('record').disabled = false;
});
