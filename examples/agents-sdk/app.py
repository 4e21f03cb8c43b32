"""An agent of OpenAI's Agents SDK, on the Responses API: `pip install openai-agents`.

Its own tool runs here, the search in the proxy; the SDK shows both among the items of the run.
"""

from agents import Agent, Runner, WebSearchTool, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # traces would go to OpenAI


@function_tool
def my_bicycles() -> str:
    """Lists the user's bicycles."""
    return "one, red"


agent = Agent(name="helper", model="glm-4.7", tools=[WebSearchTool(), my_bicycles])
result = Runner.run_sync(agent, "Who invented the bicycle?")
print([item.type for item in result.new_items])
print(result.final_output)
