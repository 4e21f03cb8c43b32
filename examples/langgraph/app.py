"""A LangGraph agent: `pip install langchain langchain-openai`. The proxy searches: the graph has no tool for it."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def my_bicycles() -> str:
    """Lists the user's bicycles."""
    return "one, red"


agent = create_agent(ChatOpenAI(model="glm-4.7"), tools=[my_bicycles])
state = agent.invoke({"messages": [("user", "Who invented the bicycle?")]})
print(state["messages"][-1].text)
