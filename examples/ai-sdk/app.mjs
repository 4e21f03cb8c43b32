// A route of a web app that streams an answer with the AI SDK. Run `npm ci` in this folder first.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
import { createServer } from "node:http";

const proxy = createOpenAICompatible({ name: "toolproxy", baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });

const server = createServer((request, response) => {
  const prompt = new URL(request.url, "http://app").searchParams.get("q");
  streamText({ model: proxy("glm-4.7"), prompt }).pipeTextStreamToResponse(response);
});

server.listen(0, "127.0.0.1", async () => {
  const answer = await fetch(`http://127.0.0.1:${server.address().port}/?q=Who+invented+the+bicycle%3F`);
  console.log(await answer.text());
  server.close();
});
